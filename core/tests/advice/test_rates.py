"""What calls cost beside their kernels and collectives, found in calls that were made of it."""

import numpy as np
import pytest

from longca_advice.network import Observed, Rates, fit_rates


def observed(rates, count, seed=0, noise=0.0):
    random = np.random.default_rng(seed)
    for _ in range(count):
        expected, phases = random.uniform(5e-3, 5e-2), int(random.integers(2, 12))
        touched, beside, hops = random.uniform(0, 4e9), random.uniform(0, 3e-3), random.uniform(0, 3e-3)
        costs = (
            rates.per_byte * touched + rates.slowdown * beside + rates.slowdown_p2p * hops + rates.per_phase * phases
        )
        seconds = (expected + costs) * (1 + noise * random.standard_normal())
        yield Observed(seconds, expected, touched, beside, hops, phases)


def test_rates_are_found():
    made = Rates(5e-13, 0.5, 0.1, 3e-5)
    found = fit_rates(list(observed(made, 60)))
    for name in ("per_byte", "slowdown", "slowdown_p2p", "per_phase"):
        assert getattr(found, name) == pytest.approx(getattr(made, name), rel=0.02)


def test_nothing_costs_less_than_nothing():
    calls = [Observed(call.expected * 0.9, *call[1:]) for call in observed(Rates(), 20)]
    assert fit_rates(calls) == Rates()
