"""The launch of bsa_gluon.

Shapes: q and out [Tq, Hq, D], k and v [Tk, Hkv, D], lse [Hq, Tq]. The last dimensions but lse's are contiguous, and
strides over tokens and heads are multiples of 16 bytes.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from longca_triton.launching import launch_kernel
from longca_vsa.bsa_gluon.forward import attend
from longca_vsa.bsa_gluon.plan import GluonPlan
from longca_vsa.bsa_gluon.shape import PIECE, WARPGROUP
from longca_vsa.gluon import ROWS

__all__ = ["launch_attend"]

_COLUMNS = 64  # elements of a head that one copy brings: 128 bytes, the widest swizzle
_BLOCKS = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)


def launch_attend(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, plan: GluonPlan) -> None:
    """Writes out and lse."""
    lists, tiles, packed, problem = plan.lists, plan.tiles, plan.packed, plan.problem
    rows = [WARPGROUP // packed, packed, _COLUMNS]
    launch_kernel(
        attend,
        (min(tiles.programs, _multiprocessors(q.device)),),
        _described(q, rows),
        _described(k, [PIECE, 1, _COLUMNS]),
        _described(v, [PIECE, 1, _COLUMNS]),
        _described(out, rows),
        lse,
        tiles.order,
        tiles.table,
        lists.entries,
        lists.offsets,
        *lse.stride(),
        tiles.programs,
        len(tiles.table),
        lists.num_rows,
        problem.heads_q // problem.concrete_mask.heads,
        problem.heads_q // problem.num_heads_kv,
        lists.unit // PIECE,
        q.shape[0],
        k.shape[0],
        problem.scale * math.log2(math.e),
        PACKED=packed,
        LAYOUT=ROWS,
        num_warps=4,
    )


def _described(x: Tensor, block: list[int]) -> TensorDescriptor:
    """A descriptor of a tensor [tokens, heads, D]. The stride of a dimension of one element may be any number."""
    strides = [x.shape[2] if size == 1 else stride for size, stride in zip(x.shape[:2], x.stride()[:2], strict=True)]
    return TensorDescriptor(x, list(x.shape), [*strides, 1], block, _BLOCKS)


@lru_cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
