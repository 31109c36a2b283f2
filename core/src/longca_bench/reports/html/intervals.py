"""Intervals of many medians at once.

The bootstrap of `longca_bench.measuring.statistics` draws places in the sorted samples. The draws depend on the
number of samples alone, so that records with equally many samples share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from longca_bench.measuring.statistics import LEAST, LEVEL, RESAMPLES, SEED

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["median_bounds"]


def median_bounds(samples: Sequence[Sequence[float]]) -> list[tuple[float, float] | None]:
    """The ends of each median's interval, equal to those of `median_interval`.

    Args:
        samples: The samples of each record.

    Returns:
        Low and high for each record, or None where there are too few samples.
    """
    found: list[tuple[float, float] | None] = [None] * len(samples)
    by_count: dict[int, list[int]] = {}
    for place, one in enumerate(samples):
        if len(one) >= LEAST:
            by_count.setdefault(len(one), []).append(place)
    for count, places in by_count.items():
        lower, upper = _places(count)
        for place in places:
            ordered = np.sort(np.asarray(samples[place], dtype=np.float64))
            draws = (ordered[lower] + ordered[upper]) / 2
            low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
            middle = float(np.median(ordered))
            found[place] = min(float(low), middle), max(float(high), middle)
    return found


def _places(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The two middle places of each resample, as `statistics` draws them."""
    random = np.random.default_rng(SEED)
    middle = (count + 1) // 2
    place = random.beta(middle, count - middle + 1, RESAMPLES)
    lower = _index(place, count)
    if count % 2:
        return lower, lower
    return lower, _index(place + (1 - place) * random.beta(1, count - middle, RESAMPLES), count)


def _index(place: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    return np.minimum((place * count).astype(np.int64), count - 1)
