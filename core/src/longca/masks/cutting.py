"""Cutting: the mask between the queries in some ranges and the keys in some ranges, re-indexed from 0.

A kept key j gets the number φ(j), the count of kept keys before it. This keeps the order of keys, so a row's interval
[a, b) stays one interval [φ(a), φ(b)). A slice is therefore split by rows alone: at the bounds of the query ranges, and
in the rows where its diagonals enter or leave a key range. Each slice yields a few slices, and not one for each pair of
ranges.

Many cuts are made in one pass. The ranges of each cut are set apart on one long axis, and the slices are moved to them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from longca.errors import MaskError
from longca.limits import MAX_SEQLEN
from longca.masks.intervals import ragged
from longca.masks.slices import SliceArray, merge, transpose, trim

__all__ = ["Range", "check_ranges", "cut", "cut_many"]

Range = tuple[int, int]
Ints = NDArray[np.int64]

#: Distance between the ranges that `cut_many` sets apart. No diagonal of a slice reaches from one to the next.
_APART = 4 * MAX_SEQLEN


def check_ranges(ranges: Iterable[Sequence[int]], seqlen: int, axis: str) -> Ints:
    """Returns ranges as int64 [n, 2] without the empty ones, or raises MaskError if they do not ascend in the mask."""
    listed = []
    for index, pair in enumerate(ranges):
        try:
            start, stop = map(operator.index, pair)
        except (TypeError, ValueError):
            raise MaskError(f"{axis} range {index} is {pair!r}; give pairs of integers (start, stop)") from None
        if not 0 <= start <= stop <= seqlen:
            raise MaskError(f"{axis} range {index} is {(start, stop)}; ranges need 0 ≤ start ≤ stop ≤ {seqlen}")
        listed.append((start, stop))
    kept = np.array([r for r in listed if r[0] < r[1]], np.int64).reshape(-1, 2)
    overlap = np.flatnonzero(kept[1:, 0] < kept[:-1, 1])
    if len(overlap):
        first, second = kept[overlap[0]].tolist(), kept[overlap[0] + 1].tolist()
        raise MaskError(
            f"{axis} ranges {tuple(first)} and {tuple(second)} overlap or descend; give them ascending and disjoint"
        )
    return kept


def cut(slices: SliceArray, q_ranges: Ints, k_ranges: Ints) -> SliceArray:
    """The tight slices of a cut. The ranges come from `check_ranges`."""
    by_query = transpose(_cut_keys(transpose(slices), q_ranges)[0])
    return merge(_cut_keys(by_query, k_ranges)[0])


def cut_many(
    slices: SliceArray, q_parts: Sequence[Ints], k_parts: Sequence[Ints], pairs: Ints
) -> tuple[SliceArray, Ints]:
    """The tight slices of many cuts [n, 6], ordered by cut and not merged, and the index of each slice's cut [n].

    `q_parts` and `k_parts` are ranges from `check_ranges`. Each of the `pairs` [cuts, 2] names a query and a key part.
    """
    q_used, q_part = np.unique(pairs[:, 0], return_inverse=True)
    k_used, k_part = np.unique(pairs[:, 1], return_inverse=True)
    each, one = (grid.ravel() for grid in np.mgrid[: len(q_used), : len(slices)])
    rows, source = _cut_apart(transpose(slices), one, each, [q_parts[part] for part in q_used])
    rows, row_part = transpose(rows), each[source]
    first = np.searchsorted(row_part, np.arange(len(q_used) + 1))
    owner, row = ragged(first[q_part], np.diff(first)[q_part])
    found, source = _cut_apart(rows, row, k_part[owner], [k_parts[part] for part in k_used])
    return found, owner[source]


def _cut_apart(slices: SliceArray, taken: Ints, part: Ints, parts: Sequence[Ints]) -> tuple[SliceArray, Ints]:
    """Cuts slices, each by the keys of its own part.

    `taken` [n] are indices of the slices to cut, with repeats, and `part` [n] are the parts that cut them. Returns the
    remaining slices, in the order of `taken`, and the index in `taken` of each.
    """
    apart = np.concatenate([np.empty((0, 2), np.int64), *(ranges + at * _APART for at, ranges in enumerate(parts))])
    if not len(apart):
        return np.empty((0, 6), np.int64), np.empty(0, np.int64)
    shift = part * _APART
    first, last = slices[taken, 2] + shift, slices[taken, 3] + shift
    reached = np.flatnonzero(renumber(first, apart) < renumber(last, apart))
    moved = slices[taken[reached]]
    moved[:, 2:] += shift[reached, None]
    found, source = _cut_keys(moved, apart)
    source = reached[source]
    before = np.r_[0, np.cumsum([int(np.diff(ranges).sum()) for ranges in parts])]
    found[:, 2:] -= before[part[source], None]
    return found, source


def renumber(positions: Ints, ranges: Ints) -> Ints:
    """Returns φ of each position: the number of tokens of `ranges` before it."""
    lengths = np.diff(ranges, axis=1).ravel()
    index = np.searchsorted(ranges[:, 0], positions, side="right") - 1
    before = np.r_[0, np.cumsum(lengths)][np.maximum(index, 0)]
    within = np.clip(positions - ranges[index, 0], 0, lengths[index])
    return np.where(index < 0, 0, before + within)


def _cut_keys(slices: SliceArray, ranges: Ints) -> tuple[SliceArray, Ints]:
    """Keeps only the keys in `ranges`, renumbered, and returns the index of each result's slice. Queries stay.

    A row's interval [max(k0, i + lo), min(k1, i + hi + 1)) becomes [max(φ(k0), φ(i + lo)), min(φ(k1), φ(i + hi + 1))).
    Over a piece's rows, φ of a diagonal is a diagonal inside a range and constant in a gap.
    """
    if not len(ranges) or not len(slices):
        return np.empty((0, 6), np.int64), np.empty(0, np.int64)
    split, source = _split_at_ranges(slices, ranges.ravel())
    q0, q1, k0, k1, lo, hi = split.T
    # Each diagonal is placed by a row in which it bounds the interval: the last row for lo, the first row for hi. In
    # the piece's other rows it may lie in another range, but there the rectangle bounds the interval.
    start, stop = q1 - 1 + lo, q0 + hi + 1
    start_inside, stop_inside = _inside(start, ranges), _inside(stop, ranges)
    new_start, new_stop = renumber(start, ranges), renumber(stop, ranges)
    new_k0, new_k1 = renumber(k0, ranges), renumber(k1, ranges)
    trimmed, keep = trim(
        np.stack(
            [
                q0,
                q1,
                np.where(start_inside, new_k0, np.maximum(new_k0, new_start)),
                np.where(stop_inside, new_k1, np.minimum(new_k1, new_stop)),
                np.where(start_inside, new_start - (q1 - 1), new_k0 - q1),
                np.where(stop_inside, new_stop - 1 - q0, new_k1 - q0),
            ],
            axis=1,
        )
    )
    return trimmed[keep], source[keep]


def _inside(positions: Ints, ranges: Ints) -> NDArray[np.bool_]:
    """Whether each position lies in a range. Other positions lie in a gap, before the first range or after the last."""
    index = np.searchsorted(ranges[:, 0], positions, side="right") - 1
    return (index >= 0) & (positions < ranges[index, 1])


def _split_at_ranges(slices: SliceArray, bounds: Ints) -> tuple[SliceArray, Ints]:
    """Splits slices by rows where a diagonal crosses a bound in the rectangle. Returns the slice of each piece too."""
    q0, q1, k0, k1, lo, hi = slices.T
    cuts = [(np.arange(len(slices)), q0)]
    for diagonal, above, below in (
        (lo, np.maximum(k0, q0 + lo), q1 - 1 + lo),
        (hi + 1, q0 + hi + 1, np.minimum(k1 - 1, q1 + hi)),
    ):
        first = np.searchsorted(bounds, above, side="right")
        count = np.maximum(np.searchsorted(bounds, below, side="right") - first, 0)
        owner, index = ragged(first, count)
        cuts.append((owner, bounds[index] - diagonal[owner]))
    owner = np.concatenate([c[0] for c in cuts])
    top = np.concatenate([c[1] for c in cuts])
    order = np.lexsort((top, owner))
    owner, top = owner[order], top[order]
    last = np.r_[owner[1:] != owner[:-1], True]
    out = slices[owner]
    out[:, 0] = top
    out[:, 1] = np.where(last, out[:, 1], np.r_[top[1:], 0])
    tall = out[:, 0] < out[:, 1]
    return out[tall], owner[tall]
