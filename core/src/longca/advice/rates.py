"""Rates: what a strategy's call costs beside its kernels and its collectives, fitted to measured calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from longca.advice.fit import non_negative

__all__ = ["Observed", "Rates", "fit_rates"]

#: Relative errors below this are noise, and weigh all the same.
_NOISE = 0.01
_ROUNDS = 5


@dataclass(frozen=True)
class Rates:
    """What a call costs beside its kernels and its collectives.

    Attributes:
        per_byte: Seconds a byte that is read or written in the device's memory.
        slowdown: Seconds that a kernel takes longer for each second of an all-to-all, all-gather or reduce-scatter
            beside it, whose kernels take many multiprocessors.
        slowdown_p2p: The same for a hop of a ring, whose kernels take few.
        per_phase: Seconds of a phase that launches anything: launches, and waiting for one another.
    """

    per_byte: float = 0.0
    slowdown: float = 0.0
    slowdown_p2p: float = 0.0
    per_phase: float = 0.0


@dataclass(frozen=True)
class Observed:
    """A measured call of a strategy, and what its timeline says of it without rates.

    Attributes:
        seconds: What the call took, on the slowest rank.
        expected: Seconds of its timeline where nothing but kernels and collectives costs anything.
        touched: Bytes read and written for packing, casting and merging.
        beside: Seconds of collectives beside kernels.
        beside_p2p: The same of hops of rings.
        count: Phases that launch anything.
    """

    seconds: float
    expected: float
    touched: float
    beside: float
    beside_p2p: float
    count: int


def fit_rates(observed: Sequence[Observed]) -> Rates:
    """The rates by which measured calls take longer than their kernels and exposed collectives.

    The fit is by non-negative least squares on the relative error. Large errors weigh less (Huber).

    Args:
        observed: Calls on one kind of device; of none, nothing costs anything.
    """
    if not observed:
        return Rates()
    seconds = np.array([call.seconds for call in observed])
    wanted = np.array([call.seconds - call.expected for call in observed]) / seconds
    table = np.array([(call.touched, call.beside, call.beside_p2p, call.count) for call in observed]) / seconds[:, None]
    weight = np.ones(len(seconds))
    for _ in range(_ROUNDS):
        fitted = non_negative(table * weight[:, None], wanted * weight)
        error = np.abs(table @ fitted - wanted)
        limit = max(1.5 * float(np.median(error)), _NOISE)
        weight = np.sqrt(np.minimum(1, limit / np.maximum(error, 1e-12)))
    return Rates(*map(float, fitted))
