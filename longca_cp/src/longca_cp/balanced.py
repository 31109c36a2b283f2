"""The balanced placement: short chunks dealt by the area of their rows in the mask, equally many to each part.

Chunks are sorted by area and dealt in rounds of one to each part: the largest of a round goes to the part that has
least so far, as in longest-processing-time-first scheduling (Graham, 1969) with equal counts. A round can widen the
gap between two parts only up to the gap between its own chunks, and rounds do not overlap in area, so that

    largest area of a part − smallest area of a part  ≤  area of the largest chunk − area of the smallest.

Then the fullest and the emptiest part exchange the two chunks that bring them closest, as long as any do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from longca.manifests.strategy import Ranges
from longca.masks import Mask
from longca_cp.ranges import even_bounds, union

__all__ = ["CHUNK", "MIN_CHUNKS", "TOLERANCE", "areas", "balanced"]

#: Tokens a chunk, at most: four tiles of 128, so that few tiles hold the seams between chunks.
CHUNK = 512

#: Chunks a part, at least, where it has as many tokens; fewer could not be balanced.
MIN_CHUNKS = 8

#: How much the fullest part may have above the mean before chunks are halved, twice at most: down to a tile.
TOLERANCE = 0.01

_Ints = NDArray[np.int64]


def balanced(mask: Mask, parts: int) -> tuple[Ranges, ...]:
    """Chunks of up to CHUNK tokens, dealt by area; all parts hold as many chunks, and tokens but for one."""
    seqlen = mask.seqlen_q
    owner = _finest_needed(mask, parts)
    # Chunks of equal size leave tokens over. They make some chunks longer by one, as many of each part's but for one.
    share = seqlen // len(owner)
    sizes = np.full(len(owner), share)
    longer = np.diff(even_bounds(seqlen - share * len(owner), parts))
    for part in range(parts):
        sizes[np.flatnonzero(owner == part)[: longer[part]]] += 1
    stops = np.cumsum(sizes)
    starts = stops - sizes
    return tuple(union(starts[owner == part], stops[owner == part]) for part in range(parts))


def _finest_needed(mask: Mask, parts: int) -> _Ints:
    """Which part gets each chunk, of chunks as long as balance allows: [chunks]."""
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
        bounds: The chunks' bounds, ascending from 0 to the mask's queries; chunks may be empty: [chunks + 1].

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
    """Which part gets each chunk, of a multiple of the parts: [chunks]; and the parts' areas: [parts]."""
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
    """Exchanges chunks between the fullest and the emptiest part, in place, while that brings the two closer.

    Args:
        owner: Which part has each chunk: [chunks].
        area: The chunks' areas: [chunks].
        total: The parts' areas: [parts].
    """
    # All parts have equally many chunks: [parts, chunks of one], those of one ascending.
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
    """The chunk to give, the one to take for it, and the gap that is left: the first pair that leaves least.

    Args:
        given: Areas of the fullest part's chunks.
        taken: Areas of the emptiest part's chunks.
        gap: How much more the fullest part has.
    """
    order = np.argsort(taken, kind="stable")
    values = taken[order]
    # For each chunk that is given, the largest below what would even the parts out, and the smallest that is not.
    above = np.minimum(np.searchsorted(2 * values, 2 * given - gap), len(values) - 1)
    below = np.searchsorted(values, values[np.maximum(above - 1, 0)])
    left = np.abs(gap - 2 * (given[:, None] - values[np.stack([below, above], axis=1)]))
    give = int(left.min(axis=1).argmin())
    least = int(left[give].min())
    nearest = np.array([below[give], above[give]])[left[give] == least]
    return give, int(order[nearest].min()), least
