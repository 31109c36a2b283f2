"""Ranges: tokens as ascending, disjoint (start, stop) pairs, taken apart and put together."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from longca.manifests.strategy import Ranges
from longca.masks import SliceMask
from longca.masks.intervals import ragged

__all__ = ["even_bounds", "keys_seen", "split", "union"]


def even_bounds(total: int, parts: int) -> list[int]:
    """Bounds of `parts` consecutive pieces of equal length, the first ones longer by one: [parts + 1]."""
    sizes = (total // parts + (part < total % parts) for part in range(parts))
    return list(accumulate(sizes, initial=0))


def split(ranges: Ranges, parts: int) -> tuple[Ranges, ...]:
    """Consecutive pieces of some ranges, of equal length. The first ones may be longer by one."""
    if parts == 1:
        return (tuple(ranges),)
    starts, stops = np.array(ranges, np.int64).reshape(-1, 2).T
    before = np.r_[0, np.cumsum(stops - starts)]
    bounds = np.array(even_bounds(int(before[-1]), parts))
    # The starts of ranges and pieces, counted through the tokens of all ranges.
    first = np.unique(np.concatenate([before, bounds]))
    length, first = np.diff(first), first[:-1]
    owner = np.searchsorted(before, first, side="right") - 1
    start = starts[owner] + first - before[owner]
    pairs = list(zip(start.tolist(), (start + length).tolist(), strict=True))
    at = np.searchsorted(first, bounds).tolist()
    return tuple(tuple(pairs[begin:end]) for begin, end in pairwise(at))


def union(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Ranges:
    """The union of some ranges, which may be in any order and empty, as the smallest number of ranges."""
    held = starts < stops
    starts, stops = starts[held], stops[held]
    if not len(starts):
        return ()
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(stops[order])
    first = np.r_[True, starts[1:] > reach[:-1]]
    last = np.r_[first[1:], True]
    return tuple(zip(starts[first].tolist(), reach[last].tolist(), strict=True))


def keys_seen(mask: SliceMask, part: Ranges) -> Ranges:
    """The keys that some query of a part sees."""
    q0, q1, k0, k1, lo, hi = mask.array.T
    starts, stops = np.array(part, np.int64).reshape(-1, 2).T
    first = np.searchsorted(stops, q0, side="right")
    each, met = ragged(first, np.maximum(np.searchsorted(starts, q1) - first, 0))
    top, bottom = np.maximum(starts[met], q0[each]), np.minimum(stops[met], q1[each])
    # Each row of a tight slice sees a key, and its keys move on by at most one from row to row.
    return union(np.maximum(k0[each], top + lo[each]), np.minimum(k1[each], bottom + hi[each]))
