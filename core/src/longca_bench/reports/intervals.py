"""Intervals of many medians and ratios at once, equal to those of `longca_bench.measuring.statistics`.

The bootstrap draws places in the sorted samples. The draws depend on the number of samples alone, so that records with
equally many samples share them, and few of the 4000 draws differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from longca_bench.measuring.statistics import (
    ENDS,
    LEAST,
    RESAMPLES,
    SEED,
    Interval,
    geometric_mean_interval,
    middle_places,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["mean_ratio", "median_bounds", "ratio_intervals"]

#: Records whose resamples are held at once: 4000 resamples of 8 bytes each.
_AT_ONCE = 512
#: Pairs from which a mean's interval is that of a normal distribution.
_MANY = 1000

Samples = Sequence[Sequence[float]]
Pairs = Sequence[tuple[Sequence[float], Sequence[float]]]


def median_bounds(samples: Samples) -> NDArray[np.float64]:
    """The ends of each median's interval: [records, 2], NaN with too few samples."""
    found = np.full((len(samples), 2), np.nan)
    for counts, places, (ordered,) in _by_count(list(samples)):
        (drawn,), often = _drawn(*counts)
        found[places] = _ends(_medians(ordered, drawn), often, np.median(ordered, axis=1))
    return found


def ratio_intervals(pairs: Pairs) -> list[Interval]:
    """median(a) / median(b) of each pair, as `geometric_mean_interval` gives it."""
    found: list[Interval] = [Interval(1.0, -np.inf, np.inf)] * len(pairs)
    for counts, places, ordered in _by_count([a for a, _ in pairs], [b for _, b in pairs], least=1):
        a, b = (np.median(each, axis=1) for each in ordered)
        ends = np.tile((-np.inf, np.inf), (len(places), 1))
        if min(counts) >= LEAST:
            drawn, often = _drawn(*counts)
            a_draws, b_draws = (_medians(each, middles) for each, middles in zip(ordered, drawn, strict=True))
            ends = _ends(a_draws / b_draws, often, a / b)
        for place, value, (low, high) in zip(places, (a / b).tolist(), ends.tolist(), strict=True):
            found[place] = Interval(value, low, high)
    return found


def mean_ratio(pairs: Pairs, ratios: Sequence[Interval]) -> Interval:
    """The geometric mean of the ratios of pairs.

    The mean of many ratios is normally distributed, so that the squares of their intervals add up. Fewer pairs than
    `_MANY` have the bootstrap of `geometric_mean_interval`.
    """
    if len(pairs) < _MANY:
        return geometric_mean_interval(pairs)
    value = float(np.log([ratio.value for ratio in ratios]).mean())
    if all(ratio.is_known for ratio in ratios):
        low, high = np.log([(ratio.low, ratio.high) for ratio in ratios]).T
        reach = float(np.sqrt(((high - low) ** 2).sum())) / 2 / len(pairs)
        start, stop = (float((low + high).mean()) / 2 + side * reach for side in (-1, 1))
        return Interval(*(float(np.exp(each)) for each in (value, min(start, value), max(stop, value))))
    return Interval(float(np.exp(value)), -np.inf, np.inf)


def _by_count(
    *sides: Samples, least: int = LEAST
) -> Iterator[tuple[tuple[int, ...], list[int], list[NDArray[np.float64]]]]:
    """Records with equally many samples on each side, some at a time: the counts, their places, and sorted samples."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for place, each in enumerate(zip(*sides, strict=True)):
        groups.setdefault(tuple(map(len, each)), []).append(place)
    for counts, places in groups.items():
        if min(counts) < least:
            continue
        for first in range(0, len(places), _AT_ONCE):
            some = places[first : first + _AT_ONCE]
            yield counts, some, [np.sort(np.array([side[place] for place in some]), axis=1) for side in sides]


@cache
def _drawn(*counts: int) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """The two middle places of the resamples of each side, as `statistics` draws them, and how often each was drawn."""
    random = np.random.default_rng(SEED)
    every = [middle for count in counts for middle in middle_places(count, random)]
    sizes = [count for count in counts for _ in range(2)]
    drawn, often = np.unique(np.ravel_multi_index(every, sizes), return_counts=True)
    middles = np.stack(np.unravel_index(drawn, sizes))
    return [middles[2 * side : 2 * side + 2] for side in range(len(counts))], often


def _medians(ordered: NDArray[np.float64], middles: NDArray[np.int64]) -> NDArray[np.float64]:
    """The medians of resamples of each record: [records, draws]."""
    return (ordered[:, middles[0]] + ordered[:, middles[1]]) / 2


def _ends(draws: NDArray[np.float64], often: NDArray[np.int64], middle: NDArray[np.float64]) -> NDArray[np.float64]:
    """The ends of intervals from distinct draws [records, draws] and their counts. They never leave out `middle`."""
    order, records = np.argsort(draws, axis=1), np.arange(len(draws))
    ordered, ranks = np.take_along_axis(draws, order, axis=1), np.cumsum(often[order], axis=1)

    def quantile(share: float) -> NDArray[np.float64]:
        place = share * (RESAMPLES - 1)
        low, high = (ordered[records, (ranks > rank).argmax(axis=1)] for rank in (int(place), int(place) + 1))
        return low + (high - low) * (place - int(place))

    low, high = map(quantile, ENDS)
    return np.stack((np.minimum(low, middle), np.maximum(high, middle)), axis=1)
