"""Rates: the overhead of a strategy's call beside its kernels and its collectives, fitted to measured calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from longca_advice.fit import robust

__all__ = ["Observed", "Rates", "fit_rates"]

#: Relative errors below this are noise, and weigh all the same.
_NOISE = 0.01


@dataclass(frozen=True)
class Rates:
    """The overhead of a call beside its kernels and its collectives.

    Attributes:
        per_byte: Seconds for each byte that is read or written in the device's memory.
        slowdown: Extra seconds of a kernel for each second of an all-to-all, all-gather or reduce-scatter beside it.
            The collective's kernels take many multiprocessors.
        slowdown_p2p: Extra seconds of a kernel for each second of a ring's hop beside it. The hop's kernels
            take few multiprocessors.
        per_phase: Seconds of each phase that launches anything: launches, and waits for other ranks.
    """

    per_byte: float = 0.0
    slowdown: float = 0.0
    slowdown_p2p: float = 0.0
    per_phase: float = 0.0


class Observed(NamedTuple):
    """A measured call of a strategy, with the values of its timeline without rates.

    Attributes:
        seconds: Time of the call, on the slowest rank.
        expected: Seconds of its timeline if only kernels and collectives cost time.
        touched: Bytes read and written for packing, casting and merging.
        beside: Seconds of collectives beside kernels.
        beside_p2p: Seconds of ring hops beside kernels.
        phases: Number of phases that launch anything.
    """

    seconds: float
    expected: float
    touched: float
    beside: float
    beside_p2p: float
    phases: float


def fit_rates(observed: Sequence[Observed]) -> Rates:
    """The rates by which measured calls take longer than their kernels and exposed collectives.

    The fit is by non-negative least squares on the relative error. Large errors weigh less (Huber).

    Args:
        observed: Calls on one kind of device. Without calls, all rates are 0.
    """
    if not observed:
        return Rates()
    values = np.array(observed, np.float64)
    seconds, expected = values[:, 0], values[:, 1]
    return Rates(*map(float, robust(values[:, 2:] / seconds[:, None], (seconds - expected) / seconds, _NOISE)))
