import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longca_bench.measuring.statistics import (
    ENOUGH,
    LEAST,
    RESAMPLES,
    _median_draws,
    geometric_mean_interval,
    median_interval,
    ratio_interval,
)

times = st.lists(st.floats(1e-6, 1e3), min_size=LEAST, max_size=30)


@given(times)
def test_a_run_held_against_itself_shows_no_difference(samples):
    assert ratio_interval(samples, samples).contains(1.0)
    assert geometric_mean_interval([(samples, samples)] * 3).contains(1.0)


@given(times, times)
def test_an_interval_holds_its_own_value_and_stays_within_the_samples(a, b):
    median = median_interval(a)
    assert min(a) <= median.low <= median.value <= median.high <= max(a)
    ratio = ratio_interval(a, b)
    assert ratio.low <= ratio.value <= ratio.high
    assert ratio.value == pytest.approx(np.median(a) / np.median(b))


@given(times, times, st.floats(0.01, 100))
def test_units_cancel(a, b, unit):
    scaled = ratio_interval([x * unit for x in a], [x * unit for x in b])
    plain = ratio_interval(a, b)
    assert (scaled.low, scaled.high) == pytest.approx((plain.low, plain.high))


@given(times, times)
def test_the_same_seed_gives_the_same_interval(a, b):
    assert ratio_interval(a, b) == ratio_interval(a, b)


def test_a_constant_difference_is_shown():
    interval = ratio_interval([2.0] * 5, [1.0] * 5)
    assert (interval.value, interval.low, interval.high) == pytest.approx((2, 2, 2))


@settings(max_examples=20)
@given(st.integers(1, 12))
def test_medians_are_drawn_as_if_from_resamples(count):
    random = np.random.default_rng(count)
    samples = np.sort(random.lognormal(size=count))
    drawn = _median_draws(samples, random)
    resampled = np.median(random.choice(samples, (RESAMPLES, count)), axis=1)
    for share in (0.1, 0.5, 0.9):
        edge = np.quantile(resampled, share)
        assert np.mean(drawn <= edge) == pytest.approx(np.mean(resampled <= edge), abs=0.04)


@pytest.mark.parametrize("count", [ENOUGH, 20])
def test_intervals_hold_the_truth_as_often_as_they_say(count):
    random, tries = np.random.default_rng(0), 300
    held = {"median": 0, "ratio": 0, "mean": 0}
    for _ in range(tries):
        pairs = [tuple(random.lognormal(math.log(t), 0.1, count) for t in (3, 2)) for _ in range(3)]
        held["median"] += median_interval(pairs[0][0]).contains(3.0)
        held["ratio"] += ratio_interval(*pairs[0]).contains(1.5)
        held["mean"] += geometric_mean_interval(pairs).contains(1.5)
    assert min(held.values()) >= 0.91 * tries, held


@pytest.mark.parametrize("count", range(1, LEAST))
def test_too_few_samples_have_no_interval(count):
    interval = ratio_interval([1.0] * count, [2.0] * 10)
    assert interval.value == pytest.approx(0.5)
    assert not interval.is_known
    assert interval.contains(1.0)
