"""Layering: a mask as few varlen calls, whose results are merged by log-sum-exp.

A layer is a chain of documents with one window. Each document comes after the one before it, by query and by key.
No mask needs fewer layers than a query has intervals of keys, and a mask that is not varlen needs two. Three ways
are tried, because none is best for every mask. The best of them need not be the fewest layers that there are:

1. The mask's slices go whole into the first layer that takes them.
2. So do its rows: slices in which each query has one interval of all its keys in a row. Rows of one document that a
   placement leaves apart keep their causal window.
3. Rows are swept from the first to the last. Keys may be cut.

The sweep counts in binary. In a staircase, each row sees all keys of the row before it and further ones. The further
keys go into a layer that is free, together with the keys of layers that the row before it used lately. These layers
are free again. So n layers take a staircase of 2ⁿ − 1 steps, and no n layers of rectangles take a longer one: the
rectangle at the lower left corner is alone in its layer, and the staircases above it and right of it remain. A layer
with a causal window takes the triangles at the ends of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from longca.masks.forms import Varlen, local_windows, pack, pieces_to_slices
from longca.masks.intervals import interval_pieces
from longca.masks.slices import UNBOUNDED, SliceArray, merge, tighten

__all__ = ["fit_layers", "layers"]

#: q0, q1, k0, k1, lo and hi of a document.
_Document = tuple[int, int, int, int, int, int]


def layers(slices: SliceArray, seqlen_q: int, seqlen_k: int) -> list[Varlen]:
    """Varlen calls that together show the pairs of tight, disjoint, merged slices that are not varlen.

    Each pair is shown once.
    """
    fewest: list[_Layer] | None = None
    for found in _layerings(slices, None):
        if fewest is None or len(found) < len(fewest):
            fewest = found
        if len(fewest) <= 2:
            break
    packed = [pack(tighten(np.array(layer.documents, np.int64)), seqlen_q, seqlen_k) for layer in fewest or ()]
    return [varlen for varlen in packed if varlen is not None]


def fit_layers(slices: SliceArray, most: int) -> bool:
    """Whether `layers` needs at most `most` layers. Each way of layering stops at the first layer beyond."""
    return any(len(found) <= most for found in _layerings(slices, most))


def _layerings(slices: SliceArray, most: int | None) -> Iterator[list[_Layer]]:
    """The layers by each way. A way ends early once it has more than `most` layers. None lets it take all slices."""
    yield _first_fit(slices, most)
    if len(slices):
        rows = merge(pieces_to_slices(interval_pieces(slices, int(slices[:, 1].max()))))
        yield _first_fit(rows, most)
        yield _swept(rows, most)


class _Side(NamedTuple):
    """One side of a shared window: the bound set by some document, and the least bound that the others need."""

    bound: int | None = None
    least: int = 0

    def joined(self, reach: int, binds: bool) -> _Side | None:
        if binds and self.bound not in (None, reach):
            return None
        bound = reach if binds else self.bound
        least = self.least if binds else max(self.least, reach)
        return None if bound is not None and bound < least else _Side(bound, least)


class _Layer:
    """Documents that one varlen call can take, in insertion order."""

    def __init__(self) -> None:
        self.documents: list[_Document] = []
        self.q = self.k = 0
        self._left, self._right = _Side(), _Side()

    def take(self, document: _Document, left: tuple[int, bool], right: tuple[int, bool]) -> bool:
        """Takes a document if it comes after all others and shares their window."""
        if self.q > document[0] or self.k > document[2]:  # as `free`, without a call for each slice and layer
            return False
        new_left, new_right = self._left.joined(*left), self._right.joined(*right)
        if new_left is None or new_right is None:
            return False
        self._left, self._right = new_left, new_right
        self.put(document)
        return True

    def free(self, q: int, k: int) -> bool:
        """Whether a document may begin at a query and a key."""
        return self.q <= q and self.k <= k

    def put(self, document: _Document) -> None:
        """Adds a document."""
        self.documents.append(document)
        self.q, self.k = document[1], document[3]

    def lengthen(self, document: _Document) -> None:
        """Puts a document in the place of the last one, which it contains."""
        self.documents.pop()
        self.put(document)


def _first_fit(slices: SliceArray, most: int | None) -> list[_Layer]:
    """The layers that take each slice as a whole, and the first one that can."""
    stacks: list[_Layer] = []
    for piece in _windowed(slices[np.lexsort((slices[:, 2], slices[:, 0]))]):
        _place(stacks, *piece)
        if most is not None and len(stacks) > most:
            break
    return stacks


def _windowed(slices: SliceArray) -> Iterable[tuple[_Document, tuple[int, bool], tuple[int, bool]]]:
    """Each slice with the left and the right side of its window."""
    left, right, left_binds, right_binds = (column.tolist() for column in local_windows(slices))
    sides = zip(left, left_binds, strict=True), zip(right, right_binds, strict=True)
    return zip((tuple(row) for row in slices.tolist()), *sides, strict=True)


def _place(stacks: list[_Layer], document: _Document, left: tuple[int, bool], right: tuple[int, bool]) -> None:
    for layer in stacks:
        if layer.take(document, left, right):
            return
    stacks.append(_Layer())
    stacks[-1].take(document, left, right)


def _swept(rows: SliceArray, most: int | None) -> list[_Layer]:
    """The layers of a sweep over slices of rows, in the order of their first query."""
    parts = _split_at_stops(rows)
    any_causal = bool(((parts[:, 5] < parts[:, 3] - 1 - parts[:, 0]) & (parts[:, 1] - parts[:, 0] > 1)).any())
    sweep = _Sweep(any_causal)
    for piece in _windowed(parts[np.lexsort((parts[:, 2], parts[:, 0]))]):
        sweep.take(*piece)
        if most is not None and len(sweep.layers) > most:
            break
    return sweep.layers


def _split_at_stops(slices: SliceArray) -> SliceArray:
    """Splits slices without a left bound into a causal part and a rectangle below it."""
    k1, hi = slices[:, 3], slices[:, 5]
    _, _, left_binds, right_binds = local_windows(slices)
    both = (left_binds == 0) & (right_binds == 1)
    upper, lower = slices[both], slices[both]
    upper[:, 1] = lower[:, 0] = (k1 - hi)[both]
    return np.concatenate([slices[~both], tighten(upper), tighten(lower[lower[:, 0] < lower[:, 1]])])


class _Sweep:
    """Layers that grow row by row, each of one kind.

    A rectangle whose last row is the row before is open: it may grow. `causal` layers have a causal window, and
    `others` take their documents whole.
    """

    def __init__(self, any_causal: bool) -> None:
        self.rectangles: list[_Layer] = []
        self.causal: list[_Layer] = []
        self.others: list[_Layer] = []
        self._any_causal = any_causal

    @property
    def layers(self) -> list[_Layer]:
        """All layers."""
        return [*self.causal, *self.rectangles, *self.others]

    def take(self, piece: _Document, left: tuple[int, bool], right: tuple[int, bool]) -> None:
        """Adds the next piece: a part of the rows of the mask."""
        q0, q1, k0, k1, lo, hi = piece
        if lo == hi and left[1]:
            # One-token documents on a diagonal fit any window.
            self._free(self.causal, [], q0, k0).put(piece)
        elif left[1]:
            _place(self.others, piece, left, right)
        else:
            one_row = q1 - q0 == 1 and self._any_causal and self._gap(self._open(q0, k0, k1), k0, k1) is not None
            stop = self._triangle(q0, q1, k0, k1) if right[1] or one_row else k1
            if k0 < stop:
                self._rectangle(q0, q1, k0, stop)

    def _triangle(self, q0: int, q1: int, k0: int, k1: int) -> int:
        """Shows the last keys of rows that see one key more each. Returns the end of the keys that remain."""
        first = k1 - (q1 - q0) + 1
        for layer in self.causal:
            last = layer.documents[-1]
            if layer.q == q0 and layer.k + 1 == first and last[2] >= k0 and last[4] == -UNBOUNDED:
                layer.lengthen((last[0], q1, last[2], k1, -UNBOUNDED, k1 - q1))
                return last[2]
        layer = self._free(self.causal, [], q0, min(first, k1 - 1))
        start = max(k0, layer.k)
        layer.put((q0, q1, start, k1, -UNBOUNDED, k1 - q1))
        return start

    def _rectangle(self, q0: int, q1: int, k0: int, k1: int) -> None:
        """Shows a rectangle: open rectangles grow, and a new one takes the keys between them."""
        kept = self._open(q0, k0, k1)
        gap = self._gap(kept, k0, k1)
        if gap:
            start, stop = gap
            layer = self._free(self.rectangles, kept, q0, start)
            # The new rectangle takes the keys of open ones before the gap. Their layers are free from here on.
            for before in reversed([each for each in kept if each.k <= start]):
                if before.k < start or before.documents[-1][2] < layer.k:
                    break
                start = before.documents[-1][2]
            kept = [each for each in kept if each.k <= start or each.documents[-1][2] >= stop]
            layer.put((q0, q1, start, stop, -UNBOUNDED, UNBOUNDED))
        for layer in kept:
            first, _, left, right, lo, hi = layer.documents[-1]
            layer.lengthen((first, q1, left, right, lo, hi))

    def _open(self, q: int, k0: int, k1: int) -> list[_Layer]:
        """Layers whose last rectangle ends at a query and lies within some keys, by their keys."""
        found = (layer for layer in self.rectangles if layer.q == q and layer.k <= k1)
        return sorted((layer for layer in found if layer.documents[-1][2] >= k0), key=lambda layer: layer.k)

    @staticmethod
    def _gap(kept: list[_Layer], k0: int, k1: int) -> tuple[int, int] | None:
        """From the first to the last of some keys that no open rectangle shows. None if all are shown."""
        bounds = [k0, *(end for layer in kept for end in layer.documents[-1][2:4]), k1]
        gaps = [(start, stop) for start, stop in zip(bounds[::2], bounds[1::2], strict=True) if start < stop]
        return (gaps[0][0], gaps[-1][1]) if gaps else None

    @staticmethod
    def _free(stacks: list[_Layer], busy: list[_Layer], q: int, k: int) -> _Layer:
        """The free layer whose last key is nearest before a key, or a new one."""
        found = [layer for layer in stacks if layer.free(q, k) and layer not in busy]
        if not found:
            stacks.append(_Layer())
        return max(found or stacks[-1:], key=lambda layer: layer.k)
