"""The launch of the kernel for Hopper.

Shapes: q and dout [Tq, Hq, D], k and v [Tk, Hkv, D]. All of them can be described (`longca_triton.descriptors`).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from longca_triton.descriptors import row_shape
from longca_triton.launching import launch_kernel
from longca_vsa.bsa.hopper.dkdv import gather_dkdv
from longca_vsa.bsa.hopper.program import PART
from longca_vsa.bsa.launches import DkdvLaunch
from longca_vsa.bsa.plan import BSAPlan
from longca_vsa.gluon import ROWS

__all__ = ["dkdv_launch", "store_source"]

_PART = PART.value
_VECTORS = NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
_SUMS = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2)


def dkdv_launch(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, prepared: Tensor, plan: BSAPlan) -> DkdvLaunch:
    """A function that writes dk and dv under some heads, as that of `longca_vsa.bsa.launches`."""
    lists, tiles, scores = plan.lists("dkdv"), plan.tiles["dkdv"], plan.scores
    assert scores is not None
    inputs = [
        *(TensorDescriptor(x, *row_shape(x), [_PART, x.shape[2]], ROWS) for x in (q, k, v, dout)),
        *(TensorDescriptor(x, list(x.shape), list(x.stride()), [1, _PART], _VECTORS) for x in prepared),
    ]
    head_strides = [x.stride(1) for x in (q, k, v, dout)]

    def launch(
        heads: range,
        results: tuple[Tensor, ...],
        sums: list[Tensor] | None,
        heads_kv: slice | None = None,
        place: Any = None,
    ) -> None:
        some = tiles.of_heads(heads_kv) if heads_kv else tiles
        launch_kernel(
            gather_dkdv,
            (some.programs,),
            *inputs,
            place,
            *(sums or results),
            *results,
            scores.first_rows,
            some.order,
            tiles.table,
            lists.entries,
            lists.offsets,
            lists.steps[_PART],
            *head_strides,
            k.shape[1] * k.shape[2],
            k.shape[2],
            *(stride for result in results for stride in result.stride()[:2]),
            len(tiles.table),
            lists.num_rows,
            lists.unit,
            heads.start,
            len(heads),
            plan.group,
            plan.heads_a_mask,
            plan.problem.scale,
            ADDS=sums is not None,
            ROWS=ROWS,
            VECTORS=_VECTORS,
            SUMS=_SUMS,
            num_warps=4,
        )

    return launch


def store_source(stored: Tensor, plan: BSAPlan) -> TensorDescriptor:
    """A descriptor of the place for gradients of scores: [rows, heads · 64]."""
    assert plan.configs.dkdv.shape == (_PART, _PART)
    return TensorDescriptor(stored, list(stored.shape), list(stored.stride()), [_PART, _PART], ROWS)
