"""Intervals of many records at once are those of one record after another."""

import numpy as np
import pytest

from longca_bench.measuring.statistics import geometric_mean_interval, median_interval
from longca_bench.reports.intervals import mean_ratio, median_bounds, ratio_intervals

RANDOM = np.random.default_rng(0)
SAMPLES = [tuple(RANDOM.lognormal(size=count)) for count in (1, 2, 3, 4, 5, 10, 33, 34, 34)]


def ratio_interval(a, b):
    return geometric_mean_interval([(a, b)])


def test_medians():
    for samples, (low, high) in zip(SAMPLES, median_bounds(SAMPLES), strict=True):
        one = median_interval(samples)
        assert np.isfinite(low) == one.is_known
        assert not one.is_known or (low, high) == pytest.approx((one.low, one.high), rel=1e-12)


def test_ratios():
    pairs = [(a, b) for a in SAMPLES for b in SAMPLES]
    for pair, found in zip(pairs, ratio_intervals(pairs), strict=True):
        one = ratio_interval(*pair)
        assert (found.value, found.low, found.high) == pytest.approx((one.value, one.low, one.high), rel=1e-12)


def test_the_mean_of_many_ratios_is_near_that_of_the_bootstrap():
    pairs = [(tuple(RANDOM.lognormal(size=11)), tuple(RANDOM.lognormal(size=10))) for _ in range(1200)]
    found, one = mean_ratio(pairs, ratio_intervals(pairs)), geometric_mean_interval(pairs)
    assert found.value == pytest.approx(one.value)
    assert (found.low, found.high) == pytest.approx((one.low, one.high), rel=5e-3)
    short = [*pairs, ((1.0,), (2.0,))]
    assert not mean_ratio(short, ratio_intervals(short)).is_known
