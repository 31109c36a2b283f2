import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longca_bench.measuring.statistics import (
    ENOUGH,
    LEAST,
    drift,
    geometric_mean_interval,
    median_interval,
)

times = st.lists(st.floats(1e-6, 1e3), min_size=LEAST, max_size=30)


def ratio_interval(a, b):
    return geometric_mean_interval([(a, b)])


@settings(max_examples=30)
@given(times)
def test_a_run_held_against_itself_shows_no_difference(samples):
    assert ratio_interval(samples, samples).contains(1.0)
    assert geometric_mean_interval([(samples, samples)] * 3).contains(1.0)


@settings(max_examples=30)
@given(times, times)
def test_an_interval_holds_its_own_value_and_stays_within_the_samples(a, b):
    median = median_interval(a)
    assert min(a) <= median.low <= median.value <= median.high <= max(a)
    ratio = ratio_interval(a, b)
    assert ratio.low <= ratio.value <= ratio.high
    assert ratio.value == pytest.approx(np.median(a) / np.median(b))


@pytest.mark.parametrize("count", [ENOUGH, 20])
def test_intervals_hold_the_truth_as_often_as_they_say(count):
    random, tries = np.random.default_rng(0), 150
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


DRAWS = {
    "normal": lambda random, count: 1 + 0.02 * random.normal(size=count),
    "late calls": lambda random, count: 1 + random.exponential(size=count),
    "ties": lambda random, count: np.round(1 + 0.02 * random.normal(size=count), 2),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_999_of_1000_series_of_chance_do_not_drift(draw):
    random = np.random.default_rng(12)
    assert sum(drift(draw(random, 12)) != 0 for _ in range(3000)) <= 3


@pytest.mark.parametrize("rise", [0.12, -0.2])
def test_a_drift_under_noise_has_its_size_and_sign(rise):
    random = np.random.default_rng(0)
    found = [drift(1 + rise * np.linspace(0, 1, 50) + 0.02 * random.normal(size=50)) for _ in range(100)]
    assert min(map(abs, found)) > 0
    assert np.mean(found) == pytest.approx(rise / (1 + rise / 2), rel=0.05)


def test_one_late_call_is_no_drift_and_few_samples_never_drift():
    assert drift([1.0] * 49 + [9.0]) == 0
    assert drift([1.0]) == drift([]) == drift([2.0] * 50) == drift(range(1, 9)) == 0
    assert drift(range(1, 10)) == pytest.approx(8 / 5)
