"""Row intervals: the keys that each query sees, as maximal half-open intervals in ascending order.

Between a few *breakpoints* the ends of every interval either stand still or move one key a row. So the intervals of all
rows are stored as affine pieces: O(slices) for any sequence length. They are expanded to one entry a row only for
a kernel that needs it. Column intervals are the row intervals of the transposed slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from longca.masks.slices import SliceArray

__all__ = ["IntervalPieces", "interval_pieces"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class IntervalPieces:
    """Every row's maximal intervals, as pieces that are affine over a segment of rows.

    In row r of its segment, piece p is [start[p] + start_step[p]·t, stop[p] + stop_step[p]·t) with
    t = r − rows[segment[p]]. A step is 0 or 1 key a row. Pieces are ordered by segment, then by start. `rows` are the
    bounds of the segments, ascending from 0 to the number of rows: [segments + 1].
    """

    rows: Ints
    segment: Ints
    start: Ints
    stop: Ints
    start_step: Ints
    stop_step: Ints

    @cached_property
    def slot(self) -> Ints:
        """Index of each piece among the intervals of its row, from 0: [pieces]."""
        first = np.searchsorted(self.segment, np.arange(len(self.rows) - 1))
        return np.arange(len(self.segment)) - first[self.segment]

    @property
    def max_intervals(self) -> int:
        """The largest number of intervals in any row."""
        return int(self.slot.max(initial=-1)) + 1

    @cached_property
    def heights(self) -> Ints:
        """Rows of each segment: [segments]."""
        return np.diff(self.rows)

    def expand(self, n: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """(starts, stops), each int32 [n, rows] with n ≥ `max_intervals`. Unused intervals are empty: [0, 0)."""
        starts, stops = np.zeros((2, n, int(self.rows[-1])), np.int32)
        for slot, (start, stop) in enumerate(self.slots()):
            starts[slot], stops[slot] = start, stop
        return starts, stops

    def slots(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """(starts, stops) of the first interval of each row, then of the second, and so on: int32 [rows] each."""
        rows = self.rows.astype(np.int32)
        offsets = np.arange(rows[-1], dtype=np.int32) - np.repeat(rows[:-1], self.heights)
        for slot in range(self.max_intervals):
            mine = self.slot == slot
            ends = []
            for base, step in ((self.start, self.start_step), (self.stop, self.stop_step)):
                table = np.zeros((2, len(self.heights)), np.int32)
                table[:, self.segment[mine]] = base[mine], step[mine]
                moved = np.repeat(table[1], self.heights)
                moved *= offsets
                moved += np.repeat(table[0], self.heights)
                ends.append(moved)
            yield ends[0], ends[1]

    def empty_rows(self) -> NDArray[np.bool_] | None:
        """Whether each row has no interval: bool [rows]. None if every row has one."""
        bare = np.bincount(self.segment, minlength=len(self.heights)) == 0
        return np.repeat(bare, self.heights) if bare.any() else None

    def gaps(self) -> tuple[NDArray[np.bool_], Ints, Ints]:
        """Whether each piece and the next share a segment, and the gap between them in its first and last row."""
        first = self.start[1:] - self.stop[:-1]
        last = self.heights[self.segment[:-1]] - 1
        return (
            self.segment[:-1] == self.segment[1:],
            first,
            first + (self.start_step[1:] - self.stop_step[:-1]) * last,
        )

    def overlaps(self) -> bool:
        """Whether two pieces share a key in some row. Only slices that overlap give such pieces."""
        same, first, last = self.gaps()
        return bool((same & (np.minimum(first, last) < 0)).any())

    def same(self, other: IntervalPieces) -> bool:
        """Whether both have the same intervals in every row."""
        mine, theirs = self.split_rows(other.rows), other.split_rows(self.rows)
        if not np.array_equal(mine.segment, theirs.segment):
            return False
        # Affine ends that agree in the first and last row of a segment agree in all its rows.
        last = mine.heights[mine.segment] - 1
        return all(
            np.array_equal(a, b) and np.array_equal(a + a_step * last, b + b_step * last)
            for a, a_step, b, b_step in (
                (mine.start, mine.start_step, theirs.start, theirs.start_step),
                (mine.stop, mine.stop_step, theirs.stop, theirs.stop_step),
            )
        )

    def split_rows(self, at: Ints) -> IntervalPieces:
        """The same intervals with further segment bounds at the rows `at`."""
        rows = _ascending(np.concatenate([self.rows, at]))
        owner = np.searchsorted(self.rows, rows[:-1], side="right") - 1  # [new segments] → old segment
        counts = np.bincount(self.segment, minlength=len(self.rows) - 1)
        first = np.r_[0, np.cumsum(counts)][owner]
        segment, piece = ragged(first, counts[owner])
        shift = rows[segment] - self.rows[owner[segment]]
        return IntervalPieces(
            rows,
            segment,
            self.start[piece] + self.start_step[piece] * shift,
            self.stop[piece] + self.stop_step[piece] * shift,
            self.start_step[piece],
            self.stop_step[piece],
        )


def ragged(first: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """The elements of the ranges [first[i], first[i] + counts[i]): the range index of each, and the element itself."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts) + first[owner]


def _ascending(values: Ints) -> Ints:
    """Distinct values, ascending. On a million nearly sorted values this is several times as fast as `np.unique`."""
    values = np.sort(values)
    return values[np.r_[True, values[1:] != values[:-1]]] if len(values) else values


def interval_pieces(slices: SliceArray, num_rows: int) -> IntervalPieces:
    """The maximal intervals of disjoint tight slices over rows 0 … num_rows."""
    pieces = _merge_abutting(_sorted_pieces(_affine_parts(slices), num_rows))
    # Two neighbours that touch only in the first or last row of a segment must be joined in that row.
    touching = _single_row_touches(pieces)
    return _merge_abutting(pieces.split_rows(touching)) if len(touching) else pieces


def _affine_parts(slices: SliceArray) -> Ints:
    """Splits slices by rows where a clipped end starts or stops moving: [parts, 6].

    The columns are: first row, one past the last row, start and stop in the first row, start step, stop step.
    """
    q0, q1, k0, k1, lo, hi = slices.T
    start_moves = np.clip(k0 - lo, q0, q1)  # from this row on, start = i + lo
    stop_stands = np.clip(k1 - hi - 1, q0, q1)  # from this row on, stop = k1
    bounds = np.sort(np.stack([q0, start_moves, stop_stands, q1]), axis=0)
    parts = []
    for top, bottom in pairwise(bounds):
        moving, standing = top >= start_moves, top >= stop_stands
        start = np.where(moving, top + lo, k0)
        stop = np.where(standing, k1, top + hi + 1)
        part = np.stack([top, bottom, start, stop, moving, ~standing], axis=1)
        parts.append(part[top < bottom])
    return np.concatenate(parts)


def _sorted_pieces(parts: Ints, num_rows: int) -> IntervalPieces:
    rows = _ascending(np.concatenate([parts[:, 0], parts[:, 1], [0, num_rows]]))
    first = np.searchsorted(rows, parts[:, 0])
    part, segment = ragged(first, np.searchsorted(rows, parts[:, 1]) - first)
    shift = rows[segment] - parts[part, 0]
    start = parts[part, 2] + parts[part, 4] * shift
    stop = parts[part, 3] + parts[part, 5] * shift
    order = np.lexsort((start, segment))
    part = part[order]
    return IntervalPieces(rows, segment[order], start[order], stop[order], parts[part, 4], parts[part, 5])


def _merge_abutting(p: IntervalPieces) -> IntervalPieces:
    """Joins pieces of a segment that touch in all its rows."""
    if not len(p.segment):
        return p
    single = p.heights[p.segment[:-1]] == 1
    same, gap_first, _ = p.gaps()
    joined = same & (gap_first == 0) & ((p.stop_step[:-1] == p.start_step[1:]) | single)
    head, tail = np.r_[True, ~joined], np.r_[~joined, True]
    return IntervalPieces(p.rows, p.segment[head], p.start[head], p.stop[tail], p.start_step[head], p.stop_step[tail])


def _single_row_touches(p: IntervalPieces) -> Ints:
    """Rows after which to split, so that pieces that touch in a single row get a segment of that row alone."""
    same, gap_first, gap_last = p.gaps()
    several = same & (p.heights[p.segment[:-1]] > 1) & (p.stop_step[:-1] != p.start_step[1:])
    top, bottom = p.rows[p.segment[:-1]], p.rows[p.segment[:-1] + 1]
    return np.concatenate([top[several & (gap_first == 0)] + 1, bottom[several & (gap_last == 0)] - 1])
