"""Drift: whether samples rise or fall from the first to the last by more than chance explains, and by how much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["drift"]

#: Standard deviations of the rank test that more than 999 in 1000 series without a drift stay within.
_CHANCE = 3.5


def drift(samples: Sequence[float]) -> float:
    """The change from the first to the last sample, as a share of the median. 0 if chance explains it.

    The size is the median slope of all pairs of samples, which is the estimate of Theil and Sen (Sen, "Estimates of the
    regression coefficient based on Kendall's tau", JASA 63, 1968). The test is that of Mann and Kendall, with Kendall's
    correction for ties. No order of 8 or fewer samples is beyond chance.

    Args:
        samples: Positive samples in the order in which they were taken.
    """
    values = np.asarray(samples, dtype=np.float64)
    count = len(values)
    if count < 2:
        return 0.0
    early, late = np.triu_indices(count, 1)
    steps = values[late] - values[early]
    if not _is_trend(float(np.sign(steps).sum()), values):
        return 0.0
    slope = float(np.median(steps / (late - early)))
    return slope * (count - 1) / float(np.median(values))


def _is_trend(score: float, values: np.ndarray[Any, np.dtype[np.float64]]) -> bool:
    """Whether the number of rising pairs less the number of falling pairs is beyond chance."""
    count, ties = len(values), np.unique(values, return_counts=True)[1]
    variance = (_weight(count) - sum(map(_weight, ties.tolist()))) / 18
    return variance > 0 and (abs(score) - 1) / math.sqrt(variance) > _CHANCE


def _weight(count: int) -> int:
    return count * (count - 1) * (2 * count + 5)
