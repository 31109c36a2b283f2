"""Ranges: tokens as ascending, disjoint (start, stop) pairs, taken apart and put together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from longca.manifests.strategy import Ranges
from longca.masks import SliceMask
from longca.masks.cutting import cut_many

__all__ = ["even_bounds", "keys_seen", "split", "union"]

#: Slices times parts that are looked at together, for memory's sake.
_CELLS = 2**21


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


def keys_seen(mask: SliceMask, parts: Sequence[Ranges]) -> tuple[Ranges, ...]:
    """The keys that some query of each part sees: [parts][ranges]."""
    arrays = [np.array(part, np.int64).reshape(-1, 2) for part in parts]
    everything = [np.array([[0, mask.seqlen_k]])]
    together = max(1, _CELLS // max(1, len(mask.array)))
    found: list[Ranges] = []
    for some in (arrays[first : first + together] for first in range(0, len(arrays), together)):
        pairs = np.stack([np.arange(len(some)), np.zeros(len(some), np.int64)], axis=1)
        slices, owner = cut_many(mask.array, some, everything, pairs)
        at = np.searchsorted(owner, np.arange(len(some) + 1)).tolist()
        # Every column of a tight slice sees something.
        found += (union(slices[first:last, 2], slices[first:last, 3]) for first, last in pairwise(at))
    return tuple(found)
