"""Slices: rectangles of the attention matrix, each cut by a diagonal band, and arithmetic on arrays of them.

    Slice(q0, q1, k0, k1, lo, hi):  query i sees key j  iff  q0 ≤ i < q1,  k0 ≤ j < k1  and  lo ≤ j − i ≤ hi

A mask of n slices is stored as one int64 array [n, 6] in *tight* form. Every row and every column of a tight slice sees
something, and lo and hi are the smallest and largest j − i that occur. A region has only one tight slice, so
every function below is a closed form over whole arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longca.errors import MaskError
from longca.limits import MAX_SEQLEN

__all__ = [
    "UNBOUNDED",
    "Slice",
    "SliceArray",
    "area",
    "corner_band",
    "from_slices",
    "merge",
    "tighten",
    "to_slices",
    "transpose",
    "trim",
]

SliceArray = NDArray[np.int64]

#: A band edge that cuts nothing. It lies beyond any j − i, and a shift keeps it far from the limits of int64.
UNBOUNDED = 2**40


class Slice(NamedTuple):
    """One slice. Its bounds are half-open, and the band includes both edges.

    Attributes:
        q0: First query.
        q1: One past the last query.
        k0: First key.
        k1: One past the last key.
        lo: Smallest visible j − i. −∞ means unbounded.
        hi: Largest visible j − i. +∞ means unbounded.
    """

    q0: int
    q1: int
    k0: int
    k1: int
    lo: float = -math.inf
    hi: float = math.inf


def from_slices(slices: Iterable[Slice]) -> SliceArray:
    """The tight array [n, 6] of the slices. Slices that show nothing are dropped.

    Raises:
        MaskError: A bound is not an integer, or a slice is not within [0, MAX_SEQLEN].
    """
    rows = []
    for s in slices:
        bounds = (s.q0, s.q1, s.k0, s.k1)
        if any(b != int(b) or not 0 <= b <= MAX_SEQLEN for b in bounds):
            raise MaskError(f"{s}: bounds must be integers from 0 to {MAX_SEQLEN}")
        if any(math.isnan(b) or (math.isfinite(b) and b != int(b)) for b in (s.lo, s.hi)):
            raise MaskError(f"{s}: lo and hi must be integers, or -inf and inf where unbounded")
        rows.append([*bounds, max(s.lo, -UNBOUNDED), min(s.hi, UNBOUNDED)])
    return tighten(np.array(rows, np.float64).astype(np.int64).reshape(-1, 6))


def to_slices(array: SliceArray) -> tuple[Slice, ...]:
    """The slices of a tight array. A band edge that cuts nothing becomes −∞ or +∞."""
    loose_lo, loose_hi = corner_band(array)
    return tuple(
        Slice(q0, q1, k0, k1, -math.inf if lo <= low else lo, math.inf if hi >= high else hi)
        for (q0, q1, k0, k1, lo, hi), low, high in zip(
            array.tolist(), loose_lo.tolist(), loose_hi.tolist(), strict=True
        )
    )


def corner_band(array: SliceArray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The smallest and largest j − i of each slice's rectangle. Band edges at or beyond these cut nothing."""
    q0, q1, k0, k1 = array.T[:4]
    return k0 - (q1 - 1), (k1 - 1) - q0


def tighten(array: SliceArray) -> SliceArray:
    """Trims every slice to the rows, columns and diagonals that see something. Drops empty slices."""
    trimmed, keep = trim(array)
    return trimmed[keep]


def trim(array: SliceArray) -> tuple[SliceArray, NDArray[np.bool_]]:
    """Trims like `tighten` but keeps empty slices in place. Returns also which slices are not empty: ([n, 6], [n])."""
    q0, q1, k0, k1, lo, hi = array.T
    q0, q1 = np.maximum(q0, k0 - hi), np.minimum(q1, k1 - lo)
    k0, k1 = np.maximum(k0, q0 + lo), np.minimum(k1, q1 + hi)
    lo, hi = np.maximum(lo, k0 - (q1 - 1)), np.minimum(hi, (k1 - 1) - q0)
    return np.stack([q0, q1, k0, k1, lo, hi], axis=1), (q0 < q1) & (k0 < k1) & (lo <= hi)


def transpose(array: SliceArray) -> SliceArray:
    """The same region with rows and columns exchanged."""
    q0, q1, k0, k1, lo, hi = array.T
    return np.stack([k0, k1, q0, q1, -hi, -lo], axis=1)


def area(array: SliceArray) -> NDArray[np.int64]:
    """Exact number of visible pairs of each tight slice: its rectangle minus the two corners outside the band."""
    q0, q1, k0, k1, lo, hi = array.T
    loose_lo, loose_hi = corner_band(array)
    outside = np.stack([lo - loose_lo, loose_hi - hi])
    return (q1 - q0) * (k1 - k0) - _corners(outside, q1 - q0, k1 - k0).sum(axis=0)


def _corners(diagonals: NDArray[np.int64], rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cells on the `diagonals` outermost diagonals of both corners of a rows × columns rectangle: [2, n]."""

    def triangle(n: NDArray[np.int64]) -> NDArray[np.int64]:
        n = np.maximum(n, 0)
        return n * (n + 1) // 2

    return triangle(diagonals) - triangle(diagonals - rows) - triangle(diagonals - columns)


def merge(array: SliceArray) -> SliceArray:
    """Merges neighbours: pairs of disjoint slices whose bounding slice covers exactly the same pairs.

    Candidates are neighbours in an order by a shared edge or diagonal. Each round halves a chain, so a slice that
    was cut into n pieces is whole again after log n rounds. The result is ordered by (q0, k0).
    """
    sized = np.column_stack([array, area(array)])
    while True:
        before = len(sized)
        for keys in _NEIGHBOUR_ORDERS:
            sized = _merge_adjacent(sized[np.lexsort([sized[:, column] for column in reversed(keys)])])
        if len(sized) == before:
            return np.ascontiguousarray(sized[np.lexsort((sized[:, 2], sized[:, 0])), :6])


# The columns are q0, q1, k0, k1, lo, hi. Two slices side by side share q0 and q1. Two slices one above the other
# share an edge (k0 or k1) or a diagonal (lo or hi).
_NEIGHBOUR_ORDERS = ((0, 1, 2, 4), (2, 0), (3, 0), (4, 0), (5, 0))


def _merge_adjacent(sized: NDArray[np.int64]) -> NDArray[np.int64]:
    """Merges neighbours in the order of the slices: [n, 7] with their areas in the last column."""
    if len(sized) < 2:
        return sized
    a, b = sized[:-1], sized[1:]
    union = np.minimum(a, b)
    union[:, [1, 3, 5]] = np.maximum(a[:, [1, 3, 5]], b[:, [1, 3, 5]])
    union[:, 6] = a[:, 6] + b[:, 6]
    fits = area(union[:, :6]) == union[:, 6]
    if not fits.any():
        return sized
    # Take every other pair in a run of pairs that fit: a slice joins at most one neighbour a round.
    index = np.arange(len(fits))
    run_start = np.maximum.accumulate(np.where(fits & ~np.r_[False, fits[:-1]], index, 0))
    take = fits & ((index - run_start) % 2 == 0)
    merged = sized.copy()
    merged[:-1][take] = union[take]
    return merged[~np.r_[False, take]]
