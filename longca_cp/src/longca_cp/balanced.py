"""The balanced placement: short chunks dealt by the area of their rows in the mask, equally many to each part.

Chunks are sorted by area and dealt in rounds of one chunk to each part. The largest chunk of a round goes to the part
with the least area so far, as in longest-processing-time-first scheduling (Graham, 1969) with equal counts. A round can
widen the gap between two parts only up to the gap between its own chunks, and rounds do not overlap in area. So

    largest area of a part − smallest area of a part  ≤  area of the largest chunk − area of the smallest.

Then the fullest and the emptiest part exchange the two chunks that bring them closest, until no exchange helps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from longca.manifests.strategy import Ranges
from longca.masks import Mask
from longca_cp.ranges import even_bounds, union

__all__ = ["CHUNK", "MIN_CHUNKS", "TOLERANCE", "areas", "balanced"]

#: The most tokens of a chunk: four tiles of 128, so that few tiles contain a seam between chunks.
CHUNK = 512

#: The fewest chunks of a part, if it has enough tokens. Fewer could not be balanced.
MIN_CHUNKS = 8

#: The excess of the fullest part over the mean above which chunks are halved, at most twice: down to a tile.
TOLERANCE = 0.01

_Ints = NDArray[np.int64]


def balanced(mask: Mask, parts: int) -> tuple[Ranges, ...]:
    """Chunks of up to CHUNK tokens, dealt by area. Parts have equally many chunks, and tokens up to one."""
    seqlen = mask.seqlen_q
    owner = _finest_needed(mask, parts)
    # The tokens that equal chunks leave over make some chunks longer by one, evenly over the parts.
    share = seqlen // len(owner)
    sizes = np.full(len(owner), share)
    longer = np.diff(even_bounds(seqlen - share * len(owner), parts))
    for part in range(parts):
        sizes[np.flatnonzero(owner == part)[: longer[part]]] += 1
    stops = np.cumsum(sizes)
    starts = stops - sizes
    return tuple(union(starts[owner == part], stops[owner == part]) for part in range(parts))


def _finest_needed(mask: Mask, parts: int) -> _Ints:
    """The part of each chunk, for chunks that are as long as balance allows: [chunks]."""
    each = max(-(-mask.seqlen_q // (parts * CHUNK)), min(MIN_CHUNKS, mask.seqlen_q // parts), 1)
    for chunks in (parts * each, parts * each * 2, parts * each * 4):
        area = areas(mask, np.array(even_bounds(mask.seqlen_q, chunks)))
        owner, total = _deal(area, parts)
        if chunks * 2 > mask.seqlen_q or total.max() <= (1 + TOLERANCE) * total.mean():
            break
    return owner


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


def _deal(area: _Ints, parts: int) -> tuple[_Ints, _Ints]:
    """The part of each chunk, [chunks], and the parts' areas, [parts]. Chunks are a multiple of parts."""
    owner = np.empty(len(area), np.int64)
    total = np.zeros(parts, np.int64)
    largest_first = np.argsort(-area, kind="stable").reshape(-1, parts)
    for dealt in largest_first:
        least_first = np.argsort(total, kind="stable")
        owner[dealt] = least_first
        total[least_first] += area[dealt]
    _even_out(owner, area, total)
    return owner, total


def _even_out(owner: _Ints, area: _Ints, total: _Ints) -> None:
    """Exchanges chunks of the fullest and the emptiest part in place, as long as that brings the two closer.

    Args:
        owner: The part of each chunk: [chunks].
        area: The chunks' areas: [chunks].
        total: The parts' areas: [parts].
    """
    # All parts have equally many chunks: [parts, chunks of a part]. The chunks of a part ascend.
    held = np.argsort(owner, kind="stable").reshape(len(total), -1)
    for _ in range(len(owner)):
        full, empty = int(total.argmax()), int(total.argmin())
        gap = int(total[full] - total[empty])
        give, take, after = _closest(area[held[full]], area[held[empty]], gap)
        if after >= gap:
            return
        given, taken = held[full, give], held[empty, take]
        owner[given], owner[taken] = empty, full
        held[full, give], held[empty, take] = taken, given
        held[full].sort()
        held[empty].sort()
        moved = area[given] - area[taken]
        total[full] -= moved
        total[empty] += moved


def _closest(given: _Ints, taken: _Ints, gap: int) -> tuple[int, int, int]:
    """The chunk to give, the chunk to take for it, and the remaining gap: the first pair with the smallest gap.

    Args:
        given: Areas of the fullest part's chunks.
        taken: Areas of the emptiest part's chunks.
        gap: The difference between the two parts.
    """
    order = np.argsort(taken, kind="stable")
    values = taken[order]
    # For each given chunk, the two chunks nearest to the one that would even the parts out.
    above = np.minimum(np.searchsorted(2 * values, 2 * given - gap), len(values) - 1)
    below = np.searchsorted(values, values[np.maximum(above - 1, 0)])
    left = np.abs(gap - 2 * (given[:, None] - values[np.stack([below, above], axis=1)]))
    give = int(left.min(axis=1).argmin())
    least = int(left[give].min())
    nearest = np.array([below[give], above[give]])[left[give] == least]
    return give, int(order[nearest].min()), least
