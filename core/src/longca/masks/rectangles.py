"""The rectangles of a mask, one below the other: rows that see one range of keys, by one window. Torch-free.

Such a mask is a call of a kernel for each rectangle, on slices of the tensors. A rank with two chunks of a causal mask
has two of them. As layers of documents, the later chunk is in two layers, whose results are merged.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from longca.masks.forms import Form, Window, pieces_to_slices
from longca.masks.slice_mask import SliceMask
from longca.masks.slices import Slice, merge

__all__ = ["Rectangle", "rectangles"]

#: Pieces of rows of one rectangle, at most: where keys begin, in between, and where they end.
_PIECES = 4


@dataclass(frozen=True)
class Rectangle:
    """Queries and keys, and the window of the queries, aligned bottom-right."""

    rows: slice
    keys: slice
    window: Window

    @property
    def num_rows(self) -> int:
        """Number of queries."""
        return int(self.rows.stop - self.rows.start)

    @property
    def num_keys(self) -> int:
        """Number of keys."""
        return int(self.keys.stop - self.keys.start)


def rectangles(mask: SliceMask, most: int) -> list[Rectangle]:
    """The rectangles of a mask of one head. Empty if there are more than `most`, or if no window fits one."""
    pieces = pieces_to_slices(mask.row_pieces)
    if len(pieces) > _PIECES * most:
        return []
    slices = merge(pieces)
    if len(slices) > most or any(above[1] > below[0] for above, below in pairwise(slices)):
        return []
    found = []
    for q0, q1, k0, k1, lo, hi in (map(int, each) for each in slices):
        shift = q0 - k0
        part = SliceMask([Slice(0, q1 - q0, 0, k1 - k0, lo + shift, hi + shift)], q1 - q0, k1 - k0)
        window = Window(None, None) if part.admits(Form.FULL) else part.window
        if window is None:
            return []
        found.append(Rectangle(slice(q0, q1), slice(k0, k1), window))
    return found
