"""bsa_gluon: the forward of block-sparse attention on Hopper's own instructions.

The tables are those of `bsa`: each block of queries has a list of the key blocks that it sees, and the query heads that
share a mask and a KV head are rows of one tile. The kernel takes two pieces of 64 keys in one step, wherever they lie.

Shapes: q and out [Tq, Hq, D], k and v [Tk, Hkv, D], lse [Hq, Tq].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from longca import Problem
from longca.kernels.base import Plan, fill, nothing_seen, on_device_of, torch_device
from longca.kernels.sizes import block_sparse
from longca.masks import Form
from longca_vsa.bsa.configs import packed_heads
from longca_vsa.bsa.lists import Kept, Lists, make_lists
from longca_vsa.bsa.tables import Tiles, make_tiles
from longca_vsa.bsa_gluon.shape import ROWS, block_size

__all__ = ["BlockSparseGluon", "GluonPlan"]

_ALIGNMENT = 16  # bytes from which the tensor memory accelerator copies


@dataclass(eq=False)
class GluonPlan(Plan):
    """A plan of bsa_gluon.

    Attributes:
        packed: Query heads that are rows of one tile.
        lists: The key blocks of each query block.
        tiles: Tiles of query rows, and the order of the programs.
    """

    packed: int
    lists: Lists
    tiles: Tiles


class BlockSparseGluon:
    """Block-sparse attention in Gluon."""

    def plan(self, problem: Problem) -> GluonPlan:
        """Puts the lists of key blocks and the tiles on the problem's device."""
        mask, packed = block_sparse(problem), packed_heads(problem)
        size, kept = block_size(mask), Kept.of(mask, torch_device(problem.device))
        # Steps of several blocks have lists of blocks, and not of runs. The last block counts as a whole one.
        (lists,) = make_lists(kept, size * np.arange(max(1, kept.num_keys) + 1), {2 * size}).values()
        tiles = make_tiles(mask.q_bounds, packed, ROWS, lists.steps[2 * size], problem.heads_q // packed)
        return GluonPlan(problem, Form.BLOCK_SPARSE, "triton", packed, lists, tiles)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: GluonPlan, *, out: Tensor | None = None, lse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of q to k and v. See `Kernel.forward`."""
        if 0 in (q.numel(), k.numel()):
            return fill(out, torch.zeros_like(q)), fill(lse, nothing_seen(q))
        q, k, v = (x if _has_aligned_strides(x) else x.clone(memory_format=torch.contiguous_format) for x in (q, k, v))
        result = out
        if result is None or not _has_aligned_strides(result):
            result = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if lse is None:
            lse = torch.empty((q.shape[1], q.shape[0]), dtype=torch.float32, device=q.device)
        from longca_vsa.bsa_gluon.launch import launch_attend  # brings in Triton

        with on_device_of(q):
            launch_attend(q, k, v, result, lse, plan)
        return fill(out, result), lse


def _has_aligned_strides(x: Tensor) -> bool:
    """Whether a descriptor can say where a tensor's tokens and heads lie."""
    steps = [stride for size, stride in zip(x.shape[:2], x.stride()[:2], strict=True) if size > 1]
    aligned = all(stride > 0 and stride * x.element_size() % _ALIGNMENT == 0 for stride in steps)
    return x.stride(2) == 1 and aligned and x.data_ptr() % _ALIGNMENT == 0
