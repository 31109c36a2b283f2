"""Drift: what chance does is no drift, and what time does is one, of the right size."""

import numpy as np
import pytest

from longca_bench.measuring.drift import drift

DRAWS = {
    "normal": lambda random, count: 1 + 0.02 * random.normal(size=count),
    "late calls": lambda random, count: 1 + random.exponential(size=count),
    "ties": lambda random, count: np.round(1 + 0.02 * random.normal(size=count), 2),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("count", [3, 12, 50])
def test_999_of_1000_series_of_chance_do_not_drift(draw, count):
    random = np.random.default_rng(count)
    assert sum(drift(draw(random, count)) != 0 for _ in range(5000)) <= 5


@pytest.mark.parametrize("rise", [0.12, -0.2])
def test_a_drift_under_noise_has_its_size_and_sign(rise):
    random = np.random.default_rng(0)
    found = [drift(1 + rise * np.linspace(0, 1, 50) + 0.02 * random.normal(size=50)) for _ in range(200)]
    assert min(map(abs, found)) > 0
    assert np.mean(found) == pytest.approx(rise / (1 + rise / 2), rel=0.05)


def test_one_late_call_is_no_drift():
    assert drift([1.0] * 49 + [9.0]) == 0
    assert drift([1.0]) == drift([]) == drift([2.0] * 50) == 0


def test_few_samples_never_drift_and_more_do():
    assert drift(range(1, 9)) == 0
    assert drift(range(1, 10)) == pytest.approx(8 / 5)
