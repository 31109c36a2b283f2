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
    """The visible pairs of the rows of some masks of one length.

    Args:
        weighed: The masks, each with its weight: at least one.

    Attributes:
        weighed: The masks, each with its weight.
        seqlen: The number of rows.
    """

    def __init__(self, weighed: Sequence[tuple[Mask, float]]) -> None:
        self.weighed = tuple(weighed)
        self.seqlen = weighed[0][0].seqlen_q

    def pairs(self, bounds: _Ints) -> _Floats:
        """The pairs of each chunk of rows: [chunks]. They are whole numbers for one mask of weight 1.

        Args:
            bounds: The chunks' bounds, ascending from 0 to the number of rows: [chunks + 1]. Chunks may be empty.
        """
        found = np.zeros(len(bounds) - 1)
        for mask, weight in self.weighed:
            found += weight * areas(mask, bounds)
        return found

    @cached_property
    def each(self) -> _Floats:
        """The pairs of each row: [rows]."""
        return self.pairs(np.arange(self.seqlen + 1))


def areas(mask: Mask, bounds: _Ints) -> _Ints:
    """The visible pairs of each chunk of queries, summed over the mask's heads, exactly.

    Args:
        mask: The mask.
        bounds: The chunks' bounds, ascending from 0 to the mask's queries: [chunks + 1]. Chunks may be empty.

    Returns:
        int64 [chunks].
    """
    totals = np.zeros(len(bounds) - 1, np.int64)
    for head in range(mask.heads):
        pieces = mask.head(head).row_pieces.split_rows(bounds)
        rows = pieces.heights[pieces.segment]
        # An interval is longer by the same number of keys in each row of a piece.
        growth = (pieces.stop_step - pieces.start_step) * (rows * (rows - 1) // 2)
        chunk = np.searchsorted(bounds, pieces.rows[pieces.segment], side="right") - 1
        np.add.at(totals, chunk, rows * (pieces.stop - pieces.start) + growth)
    return totals
