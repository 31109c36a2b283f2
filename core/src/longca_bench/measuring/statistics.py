"""Statistics: medians, their ratios and the geometric mean of ratios, with bootstrap confidence intervals.

The interval of a statistic lies between percentiles of what it gives on resamples: as many samples as there are, drawn
from them with replacement (Efron, "Bootstrap methods: another look at the jackknife", Annals of Statistics 7, 1979).
It speaks of the spread of the samples alone. What differs between one run and the next and not within them, such as
clocks, memory layout or a neighbour's load, it cannot know.

How often intervals of 95 % hold the true value, simulated: of a ratio of medians, 90 % with three samples a side, 93 %
with four, and 95 % from five on; of one median, 79 % with three, 88 % with four, and 93 % or more from five on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ENOUGH", "LEAST", "LEVEL", "Interval", "geometric_mean_interval", "median_interval", "ratio_interval"]

#: Share of intervals that hold the true value, resamples that one is made of, and the seed they are drawn from.
LEVEL, RESAMPLES, SEED = 0.95, 4000, 0
#: Samples below which there is no interval: two say nothing of a median's spread.
LEAST = 3
#: Samples a side from which intervals are as wide as they say.
ENOUGH = 5


@dataclass(frozen=True)
class Interval:
    """A value and its confidence interval.

    Attributes:
        value: What the samples themselves give.
        low: Lower end; minus infinity where there are too few samples to say.
        high: Upper end; infinity where there are too few.
    """

    value: float
    low: float
    high: float

    def contains(self, value: float) -> bool:
        """Whether a value is within, ends included."""
        return self.low <= value <= self.high

    @property
    def is_known(self) -> bool:
        """Whether there were samples enough for an interval."""
        return bool(np.isfinite(self.low) and np.isfinite(self.high))


def median_interval(samples: Sequence[float], *, level: float = LEVEL, seed: int = SEED) -> Interval:
    """The median of samples.

    Args:
        samples: One or more.
        level: Share of such intervals that hold the true median, with samples enough.
        seed: Seed of the resamples.
    """
    draws = _median_draws(samples, np.random.default_rng(seed))
    return _interval(float(np.median(samples)), draws, level, known=len(samples) >= LEAST)


def ratio_interval(a: Sequence[float], b: Sequence[float], *, level: float = LEVEL, seed: int = SEED) -> Interval:
    """median(a) / median(b): how many times b is as fast as a, where samples are times.

    Args:
        a: One or more positive samples.
        b: The same of the other side, drawn independently.
        level: Share of such intervals that hold the true ratio.
        seed: Seed of the resamples.
    """
    return geometric_mean_interval([(a, b)], level=level, seed=seed)


def geometric_mean_interval(
    pairs: Iterable[tuple[Sequence[float], Sequence[float]]], *, level: float = LEVEL, seed: int = SEED
) -> Interval:
    """The geometric mean of median(a) / median(b) over pairs; each pair's samples are resampled.

    The pairs are those that were measured, not a draw from others: the interval is about these.

    Args:
        pairs: One or more pairs of samples.
        level: Share of such intervals that hold the true mean.
        seed: Seed of the resamples.
    """
    random = np.random.default_rng(seed)
    total, draws, count, known = 0.0, np.zeros(RESAMPLES), 0, True
    for a, b in pairs:
        total += float(np.log(np.median(a)) - np.log(np.median(b)))
        draws += np.log(_median_draws(a, random)) - np.log(_median_draws(b, random))
        count, known = count + 1, known and min(len(a), len(b)) >= LEAST
    assert count, "a mean of no pairs"
    return _interval(float(np.exp(total / count)), np.exp(draws / count), level, known=known)


def _median_draws(samples: Sequence[float], random: np.random.Generator) -> NDArray[np.float64]:
    """Medians of resamples, drawn without drawing the resamples.

    A resample is n uniform places in the sorted samples; its k-th smallest is at a place that is distributed as
    Beta(k, n − k + 1), and given that one the next is at Beta(1, n − k) of what is left above it.
    """
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    count = len(ordered)
    middle = (count + 1) // 2
    place = random.beta(middle, count - middle + 1, RESAMPLES)
    lower = ordered[_index(place, count)]
    if count % 2:
        return lower
    place += (1 - place) * random.beta(1, count - middle, RESAMPLES)
    return (lower + ordered[_index(place, count)]) / 2


def _index(place: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    return np.minimum((place * count).astype(np.int64), count - 1)


def _interval(value: float, draws: NDArray[np.float64], level: float, *, known: bool) -> Interval:
    if not known:
        return Interval(value, -np.inf, np.inf)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    # exp(log(x)) is x up to rounding: an interval never leaves out its own value for that.
    return Interval(value, min(float(low), value), max(float(high), value))
