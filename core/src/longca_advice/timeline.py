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

import numpy as np
from numpy.typing import NDArray

from longca.manifests.schedule import Move, Schedule
from longca_advice.network import Network, Rates, Topology

__all__ = ["Timeline", "timeline"]

_Floats = NDArray[np.float64]

#: A move under way, the seconds that it takes of a phase, and the phases that it has left.
_Pending = tuple[Move, float, int]


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
    rates, shape, count = rates or Rates(), tuple(topology.sizes.values()), 0
    clock, computed, touched, collectives, hops = np.zeros((5, *shape))
    pending: list[_Pending] = []
    for phase in schedule:
        step = np.zeros(shape) if phase.step is None else (phase.share * compute[:, phase.step]).reshape(shape)
        pending += [(move, network.seconds(move, topology) / move.spread, move.spread) for move in phase.moves]
        launches = bool(pending) or phase.step is not None
        touches = phase.touched + phase.merged * (step > 0)
        ready = clock + rates.per_byte * touches + rates.per_phase * launches
        together, collective, hop = _together(pending, topology)
        moved = _meeting(ready, pending, topology) + together
        beside = np.asarray(phase.beside)
        beside = np.broadcast_to(beside if beside.ndim == 0 else beside.reshape(shape), shape)
        under_way = np.where(beside, np.minimum(together, step), 0.0)
        slowed = rates.slowdown * (collective * under_way) + rates.slowdown_p2p * (hop * under_way)
        clock = np.where(beside, np.maximum(moved, ready + step + slowed), moved + step)
        computed, touched = computed + step, touched + touches
        collectives, hops = collectives + collective * under_way, hops + hop * under_way
        count += launches
        pending = [(move, part, left - 1) for move, part, left in pending if left > 1]
    last = int(clock.argmax())
    each = (float(part.flat[last]) for part in (clock, computed, touched, collectives, hops))
    total, in_kernels, size, of_collectives, of_hops = each
    overhead = rates.per_byte * size + rates.slowdown * of_collectives + rates.slowdown_p2p * of_hops
    exposed = max(0.0, total - in_kernels - overhead - rates.per_phase * count)
    return Timeline(total, in_kernels, exposed, size, of_collectives, of_hops, count)


def _together(pending: Sequence[_Pending], topology: Topology) -> tuple[float, float, float]:
    """The seconds of the moves that are under way together, and the shares of collectives and of hops in them."""
    links, kinds = {True: 0.0, False: 0.0}, {"collective": 0.0, "p2p": 0.0, "push": 0.0}
    for move, seconds, _ in pending:
        links[topology.shared(move.axis) == topology.sizes[move.axis]] += seconds
        kinds[move.kind if move.kind in kinds else "collective"] += seconds
    total = sum(kinds.values()) or 1.0
    return max(links.values()), kinds["collective"] / total, kinds["p2p"] / total


def _meeting(ready: _Floats, pending: Sequence[_Pending], topology: Topology) -> _Floats:
    """When each rank's moves can begin."""
    for place, axis in enumerate(topology.sizes):
        kinds = {move.kind for move, *_ in pending if move.axis == axis}
        if kinds - {"p2p"}:
            ready = np.broadcast_to(ready.max(axis=place, keepdims=True), ready.shape)
        elif kinds:
            neighbours = np.roll(ready, 1, axis=place), np.roll(ready, -1, axis=place)
            ready = np.maximum(ready, np.maximum(*neighbours))
    return ready
