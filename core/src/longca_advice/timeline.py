"""Timelines: the time of one call of a strategy, from its schedule and the cost of each step on each rank.

Every rank has a clock. In a phase it touches memory, waits for the ranks that it exchanges with, and computes beside
the moves or behind them. A collective begins when the last rank of its group is ready. A hop of a ring begins when both
neighbours are ready. Ranks may be ahead of one another as far as that allows. NCCL's kernels take multiprocessors from
the kernel that they run beside, which costs it a share of its time. Pushes take none.

    ready    the clock, and touched / bandwidth behind it
    moved    the latest ready among the ranks of the moves, and their seconds behind it
    beside   max(moved, ready + compute + slowdown · min(moves, compute))
    else     moved + compute

Moves along one link follow one another. Moves within hosts and moves between hosts run at the same time. The overhead
of a call beside its kernels and collectives is fitted to measured calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longca.manifests import Layout, Problem, Transport
from longca.manifests.schedule import Move, Phase, Schedule
from longca.plugins import Registry
from longca_advice.fit import robust
from longca_advice.network import Network, Topology

__all__ = ["Observed", "Rates", "Timeline", "fit_rates", "schedule_of", "timeline"]

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
    """The seconds of a measured call on the slowest rank, and the values of its `Timeline` without rates."""

    seconds: float
    expected: float
    touched: float
    beside: float
    beside_p2p: float
    phases: float


def fit_rates(observed: Sequence[Observed]) -> Rates:
    """The rates by which calls on one kind of device take longer than their kernels and exposed collectives.

    The fit is by non-negative least squares on the relative error. Large errors weigh less (Huber).
    """
    if not observed:
        return Rates()
    values = np.array(observed, np.float64)
    seconds, expected = values[:, 0], values[:, 1]
    return Rates(*map(float, robust(values[:, 2:] / seconds[:, None], (seconds - expected) / seconds, _NOISE)))


_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Timeline:
    """The breakdown of the time of the rank that ends last.

    Attributes:
        seconds: From the first rank's beginning to the last rank's end.
        compute: Seconds in kernels, as if nothing ran beside them.
        exposed: Seconds in moves that its kernels do not hide, and in waits for other ranks.
        touched: Bytes that it reads and writes for packing, casting and merging.
        beside: Seconds of collectives beside its kernels.
        beside_p2p: Seconds of ring hops beside its kernels.
        count: Number of phases that launch anything.
    """

    seconds: float
    compute: float
    exposed: float
    touched: float
    beside: float
    beside_p2p: float
    count: int


def timeline(
    schedule: Schedule, compute: _Floats, network: Network, topology: Topology, rates: Rates | None = None
) -> Timeline:
    """The time of a call, and its breakdown.

    Args:
        schedule: The computation and the moves of the call.
        compute: Seconds of each rank's steps, 0 for empty steps: [ranks, steps].
        network: The links that the moves use.
        topology: The hosts of the ranks, which have the same numbers as in layouts.
        rates: The overhead of a call beside its kernels and collectives, or None for no overhead.

    Raises:
        UnsupportedError: The network does not know a move.
    """
    clocks = _Clocks(network, topology, rates or Rates())
    for phase in schedule:
        step = np.zeros(len(compute)) if phase.step is None else phase.share * compute[:, phase.step]
        clocks.advance(phase, step.reshape(clocks.shape))
    return clocks.result()


class _Clocks:
    """The ranks' clocks, and the breakdown of their time, in the shape of the strategy's axes."""

    def __init__(self, network: Network, topology: Topology, rates: Rates) -> None:
        self._network, self._topology, self._rates = network, topology, rates
        self.shape = tuple(topology.sizes.values())
        self._clock, self._compute, self._touched, self._collectives, self._hops = np.zeros((5, *self.shape))
        self._count = 0
        #: Moves under layout, the seconds that each takes of a phase, and the phases that it has left.
        self._pending: list[tuple[Move, float, int]] = []

    def advance(self, phase: Phase, compute: _Floats) -> None:
        """Goes through a phase, in which each rank computes for so many seconds."""
        rates, seconds = self._rates, self._network.seconds
        self._pending += [(move, seconds(move, self._topology) / move.spread, move.spread) for move in phase.moves]
        launches = bool(self._pending) or phase.step is not None
        touched = phase.touched + phase.merged * (compute > 0)
        ready = self._clock + rates.per_byte * touched + rates.per_phase * launches
        together, collective, hop = self._seconds()
        moved = self._meeting(ready) + together
        beside = np.asarray(phase.beside)
        beside = np.broadcast_to(beside if beside.ndim == 0 else beside.reshape(self.shape), self.shape)
        under_way = np.where(beside, np.minimum(together, compute), 0.0)
        collectives, hops = collective * under_way, hop * under_way
        computed = ready + compute + rates.slowdown * collectives + rates.slowdown_p2p * hops
        self._clock = np.where(beside, np.maximum(moved, computed), moved + compute)
        self._compute, self._touched = self._compute + compute, self._touched + touched
        self._collectives, self._hops = self._collectives + collectives, self._hops + hops
        self._count += launches
        self._pending = [(move, part, left - 1) for move, part, left in self._pending if left > 1]

    def result(self) -> Timeline:
        """The timeline of the rank that is last."""
        last, rates = int(self._clock.argmax()), self._rates
        parts = (self._clock, self._compute, self._touched, self._collectives, self._hops)
        total, compute, touched, collectives, hops = (float(part.flat[last]) for part in parts)
        slowed = rates.slowdown * collectives + rates.slowdown_p2p * hops
        exposed = max(0.0, total - compute - rates.per_byte * touched - slowed - rates.per_phase * self._count)
        return Timeline(total, compute, exposed, touched, collectives, hops, self._count)

    def _seconds(self) -> tuple[float, float, float]:
        """The seconds of the moves that are under way together, and the shares of collectives and of hops in them."""
        links, kinds = {True: 0.0, False: 0.0}, {"collective": 0.0, "p2p": 0.0, "push": 0.0}
        for move, seconds, _ in self._pending:
            links[self._topology.shared(move.axis) == self._topology.sizes[move.axis]] += seconds
            kinds[move.kind if move.kind in kinds else "collective"] += seconds
        total = sum(kinds.values()) or 1.0
        return max(links.values()), kinds["collective"] / total, kinds["p2p"] / total

    def _meeting(self, ready: _Floats) -> _Floats:
        """When each rank's moves can begin."""
        for place, axis in enumerate(self._topology.sizes):
            kinds = {move.kind for move, *_ in self._pending if move.axis == axis}
            if kinds - {"p2p"}:
                ready = np.broadcast_to(ready.max(axis=place, keepdims=True), self.shape)
            elif kinds:
                neighbours = np.roll(ready, 1, axis=place), np.roll(ready, -1, axis=place)
                ready = np.maximum(ready, np.maximum(*neighbours))
        return ready


def schedule_of(
    registry: Registry, problem: Problem, layout: Layout, nccl: bool, transport: Transport = Transport.AUTO
) -> Schedule | None:
    """The computation and the moves of a layout's strategy in one call, or None if the strategy states no schedule.

    Raises:
        UnknownNameError: Nobody provides the layout's strategy.
        PluginError: The strategy's function cannot be imported, or returns something else.
    """
    assert layout.strategy is not None, "the registry made it"
    schedule: Schedule | None = registry.stated(layout.strategy, "schedule", problem, layout, nccl, transport)
    return schedule
