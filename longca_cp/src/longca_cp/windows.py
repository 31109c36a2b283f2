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

#: Windows begin at a tile's first token, if their pairs differ by no more than this share from a part's.
_TILE, _ALIKE = 128, 0.002


def windows(rows: Rows, parts: int) -> tuple[Ranges, ...]:
    """The tokens of each part, in at most 2(parts − 1) cuts."""
    pairs, left = rows.each, np.arange(rows.seqlen)
    found: list[NDArray[np.int64]] = []
    for part, size in enumerate(np.diff(even_bounds(rows.seqlen, parts))[:-1].tolist()):
        start = _start(left, pairs[left], size, parts - part)
        mine = (np.arange(len(left)) - start) % max(len(left), 1) < size
        found.append(left[mine])
        left = left[~mine]
    return tuple(union(tokens, tokens + 1) for tokens in (*found, left))


def _start(left: NDArray[np.int64], pairs: NDArray[np.float64], size: int, parts: int) -> int:
    """The place among the tokens that are left at which the window of the next part begins.

    Args:
        left: The tokens that are left, ascending: [left].
        pairs: The pairs of their rows: [left].
        size: Tokens of a window.
        parts: The parts that share what is left.
    """
    if not len(left):
        return 0
    sums = np.r_[0.0, np.cumsum(np.r_[pairs, pairs])]
    places = np.arange(len(left))
    share = float(pairs.sum()) / parts
    error = np.abs(sums[places + size] - sums[places] - share)
    alike = (error <= _ALIKE * share / parts) & (left % _TILE == 0) & (places + size <= len(left))
    return int(alike.argmax()) if alike.any() else int(error.argmin())
