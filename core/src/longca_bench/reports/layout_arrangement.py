"""Arrangements: how the ranks of a strategy share one problem, from its manifest's layout and schedule alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from longca.manifests import Layout, Problem, Transport
from longca.manifests.schedule import Move, Phase, Schedule
from longca.manifests.step_cuts import rank_areas, step_areas
from longca.manifests.steps import Step

if TYPE_CHECKING:
    from longca.plugins import Registry

__all__ = ["Arrangement", "Call", "Transfer", "arrange", "arrange_all"]


@dataclass(frozen=True)
class Call:
    """An attention call of each rank: a step of the layout, or a part of the step's heads.

    Attributes:
        step: Index of the step.
        first: The share of the step's heads before those of this call, from 0 to 1.
        share: The share of the step's heads.
    """

    step: int
    first: float = 0.0
    share: float = 1.0

    def heads(self, heads: tuple[int, int]) -> tuple[int, int]:
        """(start, stop) of the call's heads among those of its step."""
        start, stop = heads
        ends = (self.first, self.first + self.share)
        return round(start + (stop - start) * ends[0]), round(start + (stop - start) * ends[1])


@dataclass(frozen=True)
class Transfer:
    """A move of the schedule, beside a call or before one.

    Attributes:
        move: The move.
        phase: Index of its phase.
        call: Index of the call; one past the last for moves behind all calls.
        beside: Whether the call runs meanwhile.
    """

    move: Move
    phase: int
    call: int
    beside: bool


@dataclass(frozen=True, eq=False)
class Arrangement:
    """How ranks share a problem.

    Attributes:
        title: The strategy's title.
        problem: The problem of all ranks together.
        layout: The tokens and the steps of each rank.
        placement: How tokens are placed.
        schedule: The phases of a call; None if the strategy states none.
    """

    title: str
    problem: Problem
    layout: Layout
    placement: str
    schedule: Schedule | None

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Ranks along each axis, the outermost first."""
        return dict(self.layout.axis_sizes)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.layout.world_size

    @cached_property
    def phases(self) -> Schedule:
        """The schedule; without one a phase for each step, in which nothing moves."""
        most = max(len(steps) for steps in self.layout.steps)
        return tuple(Phase(step) for step in range(most)) if self.schedule is None else self.schedule

    @cached_property
    def calls(self) -> list[Call]:
        """The attention calls of each rank, in their order."""
        done: dict[int, float] = {}
        made = []
        for phase in self.phases:
            if phase.step is not None:
                made.append(Call(phase.step, done.get(phase.step, 0.0), phase.share))
                done[phase.step] = made[-1].first + phase.share
        return made

    @cached_property
    def transfers(self) -> list[Transfer]:
        """The moves in their order."""
        return list(self._transfers())

    def _transfers(self) -> Iterator[Transfer]:
        call = 0
        for number, phase in enumerate(self.phases):
            beside = phase.step is not None and bool(np.any(phase.beside))
            yield from (Transfer(move, number, call, beside) for move in phase.moves)
            call += phase.step is not None

    def step(self, rank: int, call: int) -> Step | None:
        """What a rank computes in a call; None where it has no such step."""
        steps, about = self.layout.steps[rank], self.calls[call]
        if about.step >= len(steps):
            return None
        whole = steps[about.step]
        return Step(whole.q_ranges, whole.k_ranges, about.heads(whole.heads_q), about.heads(whole.heads_kv))

    @cached_property
    def splits_heads(self) -> bool:
        """Whether a rank computes some heads alone, so that ranks exchange heads before and after."""
        return any(heads != (0, self.problem.heads_q) for heads, _ in self.layout.table.heads)

    @cached_property
    def pairs(self) -> list[int]:
        """The visible pairs of each rank, over its query heads."""
        return rank_areas(self.problem, self.layout)

    @cached_property
    def imbalance(self) -> float:
        """The pairs of the busiest rank over those of the average rank."""
        return max(self.pairs) * len(self.pairs) / sum(self.pairs) if any(self.pairs) else 1.0

    @cached_property
    def busy_steps(self) -> list[int]:
        """The number of steps of each rank that show anything."""
        shows = step_areas(self.problem, self.layout) > 0
        return np.bincount(self.layout.table.ranks[shows], minlength=self.world_size).tolist()

    @property
    def sent(self) -> int:
        """Bytes that leave the rank that sends most, in the whole call."""
        return sum(transfer.move.sent for transfer in self.transfers)

    def groups(self, axis: str) -> list[list[int]]:
        """The ranks of each group along an axis, in their order."""
        sizes = self.axis_sizes
        ranks = np.arange(self.world_size).reshape(tuple(sizes.values()))
        found: list[list[int]] = np.moveaxis(ranks, list(sizes).index(axis), -1).reshape(-1, sizes[axis]).tolist()
        return found


def arrange(
    registry: Registry,
    strategy: str,
    problem: Problem,
    axis_sizes: Mapping[str, int],
    placement: str | None = None,
    *,
    nccl: bool = True,
) -> Arrangement:
    """The arrangement of a problem by a strategy.

    Args:
        registry: Who provides the strategy.
        strategy: Its name.
        problem: The problem of all ranks together.
        axis_sizes: Ranks along each of its axes.
        placement: How tokens are placed; None for the strategy's first placement.
        nccl: Whether NCCL moves the tensors.

    Raises:
        UnknownNameError: There is no such strategy or placement.
        RequestError: The axes are not the strategy's.
        UnsupportedError: The strategy has no layout for this problem.
        PluginError: A function of its manifest fails.
    """
    from longca_advice.timeline import schedule_of

    manifest = registry.strategy(strategy)
    layout = registry.layout(strategy, problem, axis_sizes, placement)
    schedule = schedule_of(registry, problem, layout, nccl, Transport.COLLECTIVES)  # pictures show collectives
    return Arrangement(manifest.title or strategy, problem, layout, placement or manifest.placements[0], schedule)


def arrange_all(
    registry: Registry, strategy: str, problem: Problem, axis_sizes: Mapping[str, int], *, nccl: bool = True
) -> dict[str, Arrangement | str]:
    """The arrangement by each placement of a strategy, or the reason why there is none.

    Args:
        registry: Who provides the strategy.
        strategy: Its name.
        problem: The problem of all ranks together.
        axis_sizes: Ranks along each of its axes.
        nccl: Whether NCCL moves the tensors.

    Raises:
        LongCAError: As `arrange`, but for placements without a layout.
    """
    from longca.errors import UnsupportedError

    found: dict[str, Arrangement | str] = {}
    for placement in registry.strategy(strategy).placements:
        try:
            found[placement] = arrange(registry, strategy, problem, axis_sizes, placement, nccl=nccl)
        except UnsupportedError as error:
            found[placement] = str(error)
    return found
