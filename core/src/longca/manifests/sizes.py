"""Sizes of problems that kernels limit, such as numbers that they count in 32 bits. An offer has the limits."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from longca.masks import BlockSparseMask, Form

if TYPE_CHECKING:
    from longca.manifests.problem import Problem

__all__ = ["Size"]

#: Keys are counted one by one if their upper bound is above this.
_MANY = 2**31 - 1


class Size(StrEnum):
    """A size of a problem. Sizes of blocks are 0 for other masks than block-sparse ones."""

    ROW_INTERVALS = "row_intervals"
    """Intervals of keys of a query."""
    BACKWARD_COLUMN_INTERVALS = "column_intervals in a backward"
    """Intervals of queries of a key, which count in a backward alone."""

    ELEMENTS = "elements of a tensor"
    """Elements of q, k, v or out."""
    BLOCKS = "blocks over all query heads"
    """Pairs of a block of queries and a block of keys, kept or not, over all query heads."""
    TILES = "tiles over all heads with a mask"
    """Tiles of 128 tokens, or of 64 if blocks are no whole tiles of 128, over all query heads or once for one mask."""
    KEYS = "keys over all query blocks and KV heads"
    """Keys that each block of queries sees, over all KV heads. A block that sees nothing has the first key block."""
    ENDPOINTS = "endpoints of intervals over all heads"
    """The largest number of ends of intervals that queries have, over all query heads. 0 if heads share a mask."""

    def of(self, problem: Problem) -> int:
        """This size of a problem."""
        mask, heads_q, heads_kv = problem.mask, problem.heads_q, problem.num_heads_kv
        if self.form is not None:
            return mask.count(self.form) if self.counts_in(problem.direction) else 0
        if not isinstance(mask, BlockSparseMask):
            return 0
        rows, columns = len(mask.q_bounds) - 1, len(mask.k_bounds) - 1
        match self:
            case Size.ELEMENTS:
                return max(problem.dims) * max(heads_q * mask.seqlen_q, heads_kv * mask.seqlen_k)
            case Size.BLOCKS:
                return heads_q * rows * columns
            case Size.TILES:
                tile = 128 if mask.block_size is not None and mask.block_size % 128 == 0 else 64
                tiles = -(-mask.seqlen_q // tile) * -(-mask.seqlen_k // tile)
                return max((1 if mask.heads == 1 else heads_q) * tiles, mask.bitmap_bytes)
            case Size.KEYS:
                most = heads_kv * rows * mask.seqlen_k
                return most if most <= _MANY else _keys(mask) * (heads_kv // mask.heads)
            case Size.ENDPOINTS:
                return 0 if mask.heads == 1 else heads_q * mask.seqlen_q * (columns + 1 | 1)
            case _:
                raise AssertionError(self)

    @property
    def form(self) -> Form | None:
        """The form whose intervals it counts. None for a size of blocks."""
        forms = {Size.ROW_INTERVALS: Form.ROW_INTERVALS, Size.BACKWARD_COLUMN_INTERVALS: Form.COLUMN_INTERVALS}
        return forms.get(self)

    def counts_in(self, direction: str) -> bool:
        """Whether it is limited in a direction."""
        return self is not Size.BACKWARD_COLUMN_INTERVALS or direction == "backward"


def _keys(mask: BlockSparseMask) -> int:
    """The keys that blocks of queries see, over all heads of a mask."""
    sizes, found = np.diff(mask.k_bounds), 0
    for head in range(mask.heads):
        kept = mask.kept(head)
        found += int(kept.sum(0) @ sizes) + int(sizes[:1].sum()) * int(np.count_nonzero(~kept.any(1)))
    return found
