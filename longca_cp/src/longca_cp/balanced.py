"""The balanced placement: equally many tokens and visible pairs for each part, in as few pieces as it takes.

The fewest pieces are windows of the tokens, thought of as a closed necklace. The average window of a part's tokens
holds the part's share of the pairs, and from one window to the next the pairs change by a row at most. So some window
holds that share up to a row. It is cut out, the ends are joined, and the next part is served. n parts need at most 2(n
− 1) cuts, the fewest that serve every mask (Alon, Splitting necklaces, 1987; Goldberg and West, Bisection of circle
colorings, 1985). Under a causal mask the windows are a zigzag.

Windows keep documents and large blocks together. But a part may have most of its pairs in another step of a ring than
its neighbours. If a ring would wait for that, short chunks are dealt instead, which gives every part a sample of all
rows. Chunks are sorted by area and dealt in rounds of one chunk to each part, the largest chunk of a round to the part
with the least area so far (longest-processing-time-first scheduling with equal counts: Graham, 1969). So

    largest area of a part − smallest area of a part  ≤  area of the largest chunk − area of the smallest.

Then the fullest and the emptiest part exchange the two chunks that bring them closest, until no exchange helps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from longca.manifests.step_cuts import cut_steps
from longca.manifests.steps import Steps
from longca.manifests.strategy import Ranges
from longca_cp.ranges import even_bounds, union
from longca_cp.rows import Rows

__all__ = ["CHUNK", "MIN_CHUNKS", "TOLERANCE", "balanced", "dealt", "ring_time", "windows"]

#: The most tokens of a chunk: four tiles of 128, so that few tiles contain a seam between chunks.
CHUNK = 512

#: The fewest chunks of a part, if it has enough tokens. Fewer could not be balanced.
MIN_CHUNKS = 8

#: The excess of the fullest part over the mean above which chunks are halved, at most twice: down to a tile.
TOLERANCE = 0.01

#: How much longer a ring may take with windows than with dealt chunks, and the most parts for which that is computed.
WAITS, _MOST = 0.02, 32

#: Windows begin at a tile's first token, if their pairs differ by no more than this share from a part's.
_TILE, _ALIKE = 128, 0.002

_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]


def balanced(rows: Rows, parts: int) -> tuple[Ranges, ...]:
    """Windows, or dealt chunks where a ring would wait longer with windows."""
    chunks = dealt(rows, parts)
    if not 1 < parts <= _MOST:
        return chunks
    few = windows(rows, parts)
    return few if ring_time(rows, few) <= (1 + WAITS) * ring_time(rows, chunks) else chunks


def ring_time(rows: Rows, placed: tuple[Ranges, ...]) -> float:
    """The time of a ring over a placement, in pairs: 1/n of all pairs if no part waits.

    Step s of part r has the keys of part (r − s) mod n. A step begins when its keys are there: when the neighbours have
    begun the step before.
    """
    parts = len(placed)
    part = np.arange(parts)
    table = np.stack(np.broadcast_arrays(part[:, None], (part[:, None] - part) % parts, 0), axis=-1)
    steps = Steps.even(placed, [((0, 1), (0, 1))], table, parts)
    pairs = np.zeros(parts * parts)
    for mask, weight in rows.weighed:
        single = [mask.head(head) for head in range(mask.heads)]
        pairs += weight * sum(np.concatenate([stack.areas for stack in cut_steps(one, steps, False)]) for one in single)
    clock = np.zeros(parts)
    for step in pairs.reshape(parts, parts).T:
        begun = clock
        clock = np.maximum.reduce([clock + step, np.roll(begun, 1), np.roll(begun, -1)])
    return float(clock.max())


def dealt(rows: Rows, parts: int) -> tuple[Ranges, ...]:
    """Chunks of up to CHUNK tokens, dealt by area. Parts have equally many chunks, and tokens up to one."""
    seqlen = rows.seqlen
    owner = _finest_needed(rows, parts)
    # The tokens that equal chunks leave over make some chunks longer by one, evenly over the parts.
    share = seqlen // len(owner)
    sizes = np.full(len(owner), share)
    longer = np.diff(even_bounds(seqlen - share * len(owner), parts))
    for part in range(parts):
        sizes[np.flatnonzero(owner == part)[: longer[part]]] += 1
    stops = np.cumsum(sizes)
    starts = stops - sizes
    return tuple(union(starts[owner == part], stops[owner == part]) for part in range(parts))


def _finest_needed(rows: Rows, parts: int) -> _Ints:
    """The part of each chunk, for chunks that are as long as balance allows: [chunks]."""
    each = max(-(-rows.seqlen // (parts * CHUNK)), min(MIN_CHUNKS, rows.seqlen // parts), 1)
    for chunks in (parts * each, parts * each * 2, parts * each * 4):
        area = rows.pairs(np.array(even_bounds(rows.seqlen, chunks)))
        owner, total = _deal(area, parts)
        if chunks * 2 > rows.seqlen or total.max() <= (1 + TOLERANCE) * total.mean():
            break
    return owner


def _deal(area: _Floats, parts: int) -> tuple[_Ints, _Floats]:
    """The part of each chunk, [chunks], and the parts' areas, [parts]. Chunks are a multiple of parts."""
    owner = np.empty(len(area), np.int64)
    total = np.zeros(parts)
    largest_first = np.argsort(-area, kind="stable").reshape(-1, parts)
    for dealt in largest_first:
        least_first = np.argsort(total, kind="stable")
        owner[dealt] = least_first
        total[least_first] += area[dealt]
    _even_out(owner, area, total)
    return owner, total


def _even_out(owner: _Ints, area: _Floats, total: _Floats) -> None:
    """Exchanges chunks of the fullest and the emptiest part in place, as long as that brings the two closer."""
    # All parts have equally many chunks: [parts, chunks of a part]. The chunks of a part ascend.
    held = np.argsort(owner, kind="stable").reshape(len(total), -1)
    for _ in range(len(owner)):
        full, empty = int(total.argmax()), int(total.argmin())
        gap = float(total[full] - total[empty])
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


def _closest(given: _Floats, taken: _Floats, gap: float) -> tuple[int, int, float]:
    """The chunk to give, the chunk to take for it, and the remaining gap: the first pair with the smallest gap."""
    order = np.argsort(taken, kind="stable")
    values = taken[order]
    # For each given chunk, the two chunks nearest to the one that would even the parts out.
    above = np.minimum(np.searchsorted(2 * values, 2 * given - gap), len(values) - 1)
    below = np.searchsorted(values, values[np.maximum(above - 1, 0)])
    left = np.abs(gap - 2 * (given[:, None] - values[np.stack([below, above], axis=1)]))
    give = int(left.min(axis=1).argmin())
    least = float(left[give].min())
    nearest = np.array([below[give], above[give]])[left[give] == least]
    return give, int(order[nearest].min()), least


def windows(rows: Rows, parts: int) -> tuple[Ranges, ...]:
    """The tokens of each part, in at most 2(parts − 1) cuts."""
    left, found = np.array([[0, rows.seqlen]]), list[_Ints]()
    for part, size in enumerate(np.diff(even_bounds(rows.seqlen, parts))[:-1].tolist()):
        tokens = int(np.diff(left).sum())
        start = _start(left, tokens, rows.before, size, parts - part) if tokens else 0
        over = max(0, start + size - tokens)  # a window may go on at the first token
        found.append(np.concatenate([_between(left, 0, over), _between(left, start, start + size)]))
        left = np.concatenate([_between(left, over, start), _between(left, start + size, tokens)])
    return tuple(union(*ranges.T) for ranges in (*found, left))


def _between(left: _Ints, first: int, last: int) -> _Ints:
    """The ranges of the tokens from a place among the tokens of some ranges up to another: [ranges, 2]."""
    start, stop = left.T
    ends = np.cumsum(stop - start)
    shift = start - ends + (stop - start)
    found = np.stack([np.maximum(start, first + shift), np.minimum(stop, last + shift)], axis=1)
    return found[found[:, 0] < found[:, 1]]


def _start(left: _Ints, tokens: int, before: NDArray[np.float64], size: int, parts: int) -> int:
    """The place among the tokens that are left, [ranges, 2], at which the window of the next part begins."""
    begun = np.r_[0.0, np.cumsum(before[left[:, 1]] - before[left[:, 0]])].tolist()
    each = zip(left.tolist(), begun, strict=False)
    sums = np.concatenate([*(before[first:last] - before[first] + start for (first, last), start in each), begun[-1:]])
    share = begun[-1] / parts
    firsts = np.cumsum([0, *np.diff(left).ravel()])[:-1]
    shifts = zip(left.tolist(), (firsts - left[:, 0]).tolist(), strict=True)
    places = np.concatenate([np.arange(-(-first // _TILE) * _TILE, last, _TILE) + by for (first, last), by in shifts])
    places = places[places + size <= tokens]
    alike = np.abs(sums[places + size] - sums[places] - share) <= _ALIKE * share / parts
    if alike.any():
        return int(places[alike.argmax()])
    error = np.r_[sums[size:] - sums[: tokens - size + 1], begun[-1] - sums[tokens - size + 1 : tokens] + sums[1:size]]
    error -= share
    return int(np.abs(error, out=error).argmin())
