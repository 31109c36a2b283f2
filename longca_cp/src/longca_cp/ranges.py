"""Ranges: tokens as ascending, disjoint (start, stop) pairs, taken apart and put together."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from longca.manifests.strategy import Ranges
from longca.masks.slices import SliceArray

__all__ = ["even_bounds", "keys_seen", "split", "union"]


def even_bounds(total: int, parts: int) -> list[int]:
    """Bounds of `parts` consecutive pieces of as many tokens each, the first ones longer by one: [parts + 1]."""
    sizes = (total // parts + (part < total % parts) for part in range(parts))
    return list(accumulate(sizes, initial=0))


def split(ranges: Ranges, parts: int) -> tuple[Ranges, ...]:
    """Consecutive pieces of some ranges, of as many tokens each; the first ones are longer by one."""
    lengths = [stop - start for start, stop in ranges]
    before = list(accumulate(lengths, initial=0))
    pieces = []
    for first, last in pairwise(even_bounds(before[-1], parts)):
        clipped = (
            (start + max(first - offset, 0), start + min(last - offset, length))
            for (start, _), offset, length in zip(ranges, before, lengths, strict=False)
        )
        pieces.append(tuple((start, stop) for start, stop in clipped if start < stop))
    return tuple(pieces)


def union(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Ranges:
    """The tokens that any of some ranges hold, in any order, as few ranges as there can be; empty ones hold none."""
    held = starts < stops
    starts, stops = starts[held], stops[held]
    if not len(starts):
        return ()
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(stops[order])
    first = np.r_[True, starts[1:] > reach[:-1]]
    last = np.r_[first[1:], True]
    return tuple(zip(starts[first].tolist(), reach[last].tolist(), strict=True))


def keys_seen(slices: SliceArray) -> Ranges:
    """The keys that some query sees; of tight slices, each of whose columns sees something."""
    return union(slices[:, 2], slices[:, 3])
