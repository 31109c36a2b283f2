"""Windows: tokens shared out in few stretches, with equally many tokens and equally many visible pairs for each part.

Think of the tokens as a closed necklace. Among all windows that hold a part's share of the tokens, the average window
holds the part's share of the pairs. From one window to the next the pairs change by a row at most, so that some window
holds that share up to a row. The window is cut out, the ends are joined, and the next part is served. n parts need at
most 2(n − 1) cuts, which is the fewest that serve every mask (Alon, Splitting necklaces, 1987; Goldberg and West,
Bisection of circle colorings, 1985). Under a causal mask the windows are a zigzag.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from longca.manifests.strategy import Ranges
from longca_cp.ranges import even_bounds, union
from longca_cp.rows import Rows

__all__ = ["windows"]

_Ints = NDArray[np.int64]

#: Windows begin at a tile's first token, if their pairs differ by no more than this share from a part's.
_TILE, _ALIKE = 128, 0.002


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
    """The place among the tokens that are left at which the window of the next part begins.

    Args:
        left: The ranges of the tokens that are left, ascending: [ranges, 2].
        tokens: Their number.
        before: The pairs of all rows before each row: [rows + 1].
        size: Tokens of a window.
        parts: The parts that share what is left.
    """
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
