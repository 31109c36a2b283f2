"""The placement of whole documents: short documents stay on one part each, and only the longest ones are spread.

A document that stays whole needs no keys of other ranks. Dynamic context parallelism in Megatron-LM has the same aim.
Parts still hold equally many tokens, and equally many visible pairs up to a row.

1. Whole documents are packed, the largest first, each into the part that stays emptiest (Graham, 1969).
2. The tokens of spread documents are sorted by the pairs of their rows. A part takes a window of them: as many tokens
   as it lacks, with the pairs that it lacks. Sums of windows grow with their place, so that bisection finds it. A
   window of causal documents is a stretch of each. The tokens of later parts lie around it, as in a zigzag.

The spread documents are the fewest longest ones that allow the balance, as far as doubling and bisection find them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from longca.manifests.strategy import Ranges
from longca_cp.ranges import even_bounds, union
from longca_cp.rows import Rows

__all__ = ["whole_documents"]

_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]


def whole_documents(rows: Rows, lengths: _Ints, parts: int) -> tuple[Ranges, ...]:
    """Short documents whole, and the longest ones spread as far as balance needs it, given their lengths in order."""
    bounds = np.r_[0, np.cumsum(lengths)]
    pairs = rows.pairs(bounds)
    longest_first = np.argsort(-lengths, kind="stable")
    packing = _Packing(rows, bounds, pairs, longest_first, parts)
    too_large = (lengths * parts > bounds[-1]) | (pairs * parts > pairs.sum())
    least = int(np.flatnonzero(too_large[longest_first]).max(initial=-1)) + 1
    # Few documents suffice for most masks, and are tried quickly: the steps double until a number suffices.
    tried, step, many = least - 1, 1, least
    while many < len(lengths) and packing.filled(many) is None:
        tried, step, many = many, 2 * step, many + step
    between = range(tried + 1, min(many, len(lengths)))
    at = bisect_left(between, True, key=lambda spread: packing.filled(spread) is not None)
    found = packing.filled(between[at] if at < len(between) else min(many, len(lengths)))
    assert found is not None, "all documents together can be shared out"
    return found


class _Packing:
    """Documents to pack into parts, given their bounds, [documents + 1], and the pairs of each."""

    def __init__(self, rows: Rows, bounds: _Ints, pairs: _Floats, longest_first: _Ints, parts: int) -> None:
        self._rows, self._bounds, self._pairs, self._longest_first = rows, bounds, pairs, longest_first
        self._sizes, self._mean = np.diff(even_bounds(int(bounds[-1]), parts)), float(pairs.sum()) / parts

    def filled(self, spread: int) -> tuple[Ranges, ...] | None:
        """The tokens of each part if the longest so many documents are spread, or None if that is not balanced."""
        packed = self._packed(self._longest_first[spread:])
        if packed is None:
            return None
        owner, tokens, pairs = packed
        pool = _Pool(self._rows, self._bounds, np.sort(self._longest_first[:spread]))
        lacking = self._sizes - tokens
        taken: list[_Ints] = [np.zeros(0, np.int64)] * len(lacking)
        # The parts whose needs are furthest from the average take first, while there is most to choose from.
        wish = self._mean - pairs
        order = np.argsort(-np.abs(wish - lacking * pool.mean), kind="stable").tolist()
        for turn, part in enumerate(order):
            # The pairs that windows of whole tokens left over or took too much are shared among the parts to come.
            behind = order[turn:]
            correction = (pool.pairs - float(wish[behind].sum())) / len(behind)
            taken[part], got = pool.take(int(lacking[part]), float(wish[part]) + correction)
            pairs[part] += got
        if spread < len(self._longest_first) and pairs.max() > self._mean + pool.row:
            return None
        starts, stops = self._bounds[:-1], self._bounds[1:]
        mine = [self._longest_first[spread:][owner == part] for part in range(len(lacking))]
        return tuple(
            union(np.r_[starts[whole], rows], np.r_[stops[whole], rows + 1])
            for whole, rows in zip(mine, taken, strict=True)
        )

    def _packed(self, whole: _Ints) -> tuple[_Ints, _Ints, _Floats] | None:
        """The part of each whole document, and the tokens and pairs of the parts, or None if they do not fit."""
        lengths = np.diff(self._bounds)[whole]
        pairs, mean = self._pairs[whole], max(self._mean, 1e-9)
        sizes = np.maximum(self._sizes, 1)
        owner, tokens, load = np.zeros(len(whole), np.int64), np.zeros_like(sizes), np.zeros(len(sizes))
        for document in np.argsort(-np.maximum(lengths / sizes.max(), pairs / mean), kind="stable").tolist():
            length, more = lengths[document], pairs[document]
            part = int(np.maximum((tokens + length) / sizes, (load + more) / mean).argmin())
            owner[document] = part
            tokens[part] += length
            load[part] += more
            if tokens[part] > self._sizes[part] or load[part] > mean * (1 + 1e-9):
                return None
        return owner, tokens, load


class _Pool:
    """The tokens of spread documents, by the pairs of their rows, from which parts take windows."""

    def __init__(self, rows: Rows, bounds: _Ints, spread: _Ints) -> None:
        tokens = np.concatenate([np.arange(0), *(np.arange(bounds[each], bounds[each + 1]) for each in spread)])
        pairs = rows.each[tokens]
        order = np.argsort(pairs, kind="stable")
        self._tokens = tokens[order]
        self._sums = np.r_[0.0, np.cumsum(pairs[order])]
        self.mean, self.row = float(self._sums[-1]) / max(len(tokens), 1), float(pairs.max(initial=0))
        #: What is left, as stretches of the sorted tokens.
        self._left = [(0, len(tokens))]

    @property
    def pairs(self) -> float:
        """The pairs that are left."""
        return float(sum(self._sums[stop] - self._sums[start] for start, stop in self._left))

    def take(self, count: int, wish: float) -> tuple[_Ints, float]:
        """Removes the window of so many tokens whose pairs are nearest to a wish: the tokens, and their pairs."""
        places = list(accumulate((stop - start for start, stop in self._left), initial=0))
        sums = list(accumulate((float(self._sums[b] - self._sums[a]) for a, b in self._left), initial=0.0))

        def before(place: int) -> float:
            """The pairs of the tokens before a place among those that are left."""
            at = min(bisect_right(places, place) - 1, len(self._left) - 1)
            start = self._left[at][0]
            return sums[at] + float(self._sums[start + place - places[at]] - self._sums[start])

        def window(place: int) -> float:
            return before(place + count) - before(place)

        first = bisect_left(range(places[-1] - count), wish, key=window)
        if first > 0 and wish - window(first - 1) < window(first) - wish:
            first -= 1
        got, taken, left = window(first), [], []
        for (start, stop), place in zip(self._left, places, strict=False):
            low, high = (min(max(edge - place + start, start), stop) for edge in (first, first + count))
            taken.append(self._tokens[low:high])
            left += [each for each in ((start, low), (high, stop)) if each[0] < each[1]]
        self._left = left or [(0, 0)]
        return np.concatenate(taken), got
