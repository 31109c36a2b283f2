"""Calls of strategies: their schedule, where their ranks are, and how a rank's kernel time goes to its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from longca.manifests import Layout, Problem, Transport
from longca.manifests.schedule import Schedule
from longca.manifests.step_cuts import step_problems
from longca.plugins import Registry
from longca_advice.network import Network, Topology
from longca_advice.rates import Observed, Rates
from longca_advice.timeline import Timeline, timeline

__all__ = ["StrategyCall", "schedule_of"]

_Floats = NDArray[np.float64]


def schedule_of(
    registry: Registry, problem: Problem, layout: Layout, nccl: bool, transport: Transport = Transport.AUTO
) -> Schedule | None:
    """The computation and the moves of a layout's strategy in one call, or None if the strategy states no schedule.

    Args:
        registry: Who provides the strategy.
        problem: The problem of all ranks together, in the schedule's direction alone.
        layout: The layout, as the registry made it.
        nccl: Whether NCCL moves the tensors of collectives.
        transport: The way to move tensors.

    Raises:
        UnknownNameError: Nobody provides the layout's strategy.
        PluginError: The strategy's function cannot be imported, or returns something else.
    """
    assert layout.strategy is not None, "the registry made it"
    schedule: Schedule | None = registry.stated(layout.strategy, "schedule", problem, layout, nccl, transport)
    return schedule


@dataclass(frozen=True, eq=False)
class StrategyCall:
    """One call of a strategy.

    Attributes:
        problem: The problem of all ranks together, in the call's direction alone.
        layout: The layout, as the registry made it: it assigns steps to ranks.
        schedule: The computation and the moves of the call.
        topology: Where the ranks are.
    """

    problem: Problem
    layout: Layout
    schedule: Schedule
    topology: Topology

    @cached_property
    def tiles(self) -> _Floats:
        """The scores in the tiles of 128 × 128 that each step touches, over its heads: [ranks, steps]."""
        rows = step_problems(self.problem, self.layout)
        return np.array(
            [[part.area / part.concrete_mask.tile_efficiency() if part else 0.0 for part in parts] for parts in rows]
        )

    def by_step(self, rank_seconds: Sequence[float]) -> _Floats:
        """The time of each rank's kernel calls, shared out to its steps by their tiles: [ranks, steps]."""
        total = np.maximum(self.tiles.sum(1, keepdims=True), 1.0)
        return self.tiles / total * np.array(rank_seconds)[:, None]

    def takes(self, compute: _Floats, network: Network, rates: Rates | None = None) -> Timeline:
        """How long the call takes, from the seconds of each rank's steps: [ranks, steps]."""
        return timeline(self.schedule, compute, network, self.topology, rates)

    def observed(self, seconds: float, compute: _Floats, network: Network) -> Observed:
        """The call as evidence for rates, if it took so many seconds."""
        found = self.takes(compute, network)
        return Observed(seconds, found.seconds, found.touched, found.beside, found.beside_p2p, found.count)
