"""The rectangles of a mask, one below the other, each of which is a call on slices of the tensors. Torch-free.

On an H200, a forward of `fa3` over 32 K queries and half of as many keys takes 25.6 ms on a slice of the keys, and
27.3 ms as two documents, one of which has no keys (`results/h200/distributed/tried/local-copies/speeds.json`). Steps of
rings have such masks. A rank with two chunks of a causal mask has two rectangles, which are two layers otherwise: the
later chunk is in both, and its results are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from longca.masks import Form, Slice, SliceMask, Varlen, Window
from longca.masks.forms import pieces_to_slices
from longca.masks.slices import SliceArray, area, tighten
from longca_flashattn.own_rows import alone_on_rows

__all__ = ["Rectangle", "rectangles"]

#: Pieces of rows of one rectangle, at most: where keys begin, in between, and where they end.
_PIECES = 4


@dataclass(frozen=True)
class Rectangle:
    """Queries and keys, and what the queries see of them.

    Attributes:
        rows: The queries.
        keys: The keys.
        window: The window, aligned bottom-right.
    """

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


def rectangles(mask: SliceMask, calls: Sequence[Varlen]) -> list[Rectangle]:
    """The rectangles of a mask of one head, at most as many as its calls of documents. Empty if there are more.

    Args:
        mask: The mask.
        calls: The calls of documents that show it together.
    """
    found = [_of_documents(call) for call in calls]
    if all(alone_on_rows(calls)) or len(calls) == 1:
        parts = [part for part in found if part is not None]
        if len(parts) == len(calls):
            return parts
    return _of_rows(mask, len(calls)) if len(calls) > 1 else []


def _of_documents(varlen: Varlen) -> Rectangle | None:
    """The rectangle of the only document with queries and keys. None if there are more such documents, or none."""
    bounds_q, bounds_k = varlen.cu_seqlens_q, varlen.cu_seqlens_k
    (seen,) = np.nonzero((np.diff(bounds_q) > 0) & (np.diff(bounds_k) > 0))
    if len(seen) != 1:
        return None
    at = int(seen[0])
    return Rectangle(slice(*bounds_q[at : at + 2].tolist()), slice(*bounds_k[at : at + 2].tolist()), varlen.window)


def _of_rows(mask: SliceMask, most: int) -> list[Rectangle]:
    """The rectangles of rows that see one range of keys each. Empty if there are more, or if no window fits one."""
    pieces = pieces_to_slices(mask.row_pieces)
    if len(pieces) > _PIECES * most:
        return []
    slices = _joined(pieces)
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


def _joined(pieces: SliceArray) -> list[NDArray[np.int64]]:
    """Slices below one another, joined where they are one band together. A band's last row is a piece of its own."""
    joined: list[NDArray[np.int64]] = []
    for piece in pieces:
        if joined:
            pair = np.stack([joined[-1], piece])
            low, high = pair.min(axis=0), pair.max(axis=0)
            band = tighten(np.array([[low[0], high[1], low[2], high[3], low[4], high[5]]]))
            if joined[-1][1] == piece[0] and area(band).sum() == area(pair).sum():
                joined[-1] = band[0]
                continue
        joined.append(piece)
    return joined
