"""Rows: the visible pairs of rows of queries, summed over the masks that share a placement, by their weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from longca.masks import Mask

__all__ = ["Rows", "areas"]

_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]


class Rows:
    """The visible pairs of the rows of some masks of one length, each with its weight: at least one mask."""

    def __init__(self, weighed: Sequence[tuple[Mask, float]]) -> None:
        self.weighed = tuple(weighed)
        self.seqlen = weighed[0][0].seqlen_q

    def pairs(self, bounds: _Ints) -> _Floats:
        """The pairs of each chunk of rows, given the chunks' bounds: [chunks]."""
        return np.diff(self.before[bounds])

    @cached_property
    def each(self) -> _Floats:
        """The pairs of each row: [rows]."""
        return np.diff(self.before)

    @cached_property
    def before(self) -> _Floats:
        """The pairs of all rows before each row: [rows + 1]."""
        found = np.zeros(self.seqlen + 1)
        for mask, weight in self.weighed:
            found += weight * _areas_before(mask)
        return found


def areas(mask: Mask, bounds: _Ints) -> _Ints:
    """The visible pairs of each chunk of queries, over all heads, given the chunks' bounds: int64 [chunks]."""
    return np.diff(_areas_before(mask)[bounds])


def _areas_before(mask: Mask) -> _Ints:
    """The visible pairs of all queries before each query, summed over the mask's heads: int64 [queries + 1]."""
    rise, steps = np.zeros((2, mask.seqlen_q + 2), np.int64)
    for head in range(mask.heads):
        pieces = mask.head(head).row_pieces
        first, heights = pieces.rows[pieces.segment], pieces.heights[pieces.segment]
        # An interval is longer by the same number of keys in each row of a piece.
        length, growth = pieces.stop - pieces.start, pieces.stop_step - pieces.start_step
        np.add.at(rise, first, length)
        np.add.at(rise, first + heights, -length - growth * (heights - 1))
        np.add.at(steps, first + 1, growth)
        np.add.at(steps, first + heights, -growth)
    return np.r_[0, np.cumsum(np.cumsum(rise + np.cumsum(steps)))[: mask.seqlen_q]]
