"""Arrangements: how the ranks of a strategy share one problem, from its layout and schedule alone, and its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from longca.manifests import Layout, Problem, Transport
from longca.manifests.schedule import Move, Phase, Schedule
from longca.manifests.step_cuts import rank_areas, step_areas
from longca.manifests.steps import Step
from longca_bench.reports.table import Cell, Head, Mark, Table, table
from longca_bench.reports.words import three_digits, times

if TYPE_CHECKING:
    from longca.plugins import Registry

__all__ = [
    "Arrangement",
    "Call",
    "Transfer",
    "arrange",
    "arrange_all",
    "arrangement_json",
    "arrangement_tables",
    "placement_table",
]

_MOST_RANKS = 32


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
        call, found = 0, []
        for number, phase in enumerate(self.phases):
            beside = phase.step is not None and bool(np.any(phase.beside))
            found += [Transfer(move, number, call, beside) for move in phase.moves]
            call += phase.step is not None
        return found

    def step(self, rank: int, call: int) -> Step | None:
        """A rank's work in a call. None if the rank has no such step."""
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


def arrangement_tables(made: Arrangement) -> list[Table]:
    """The work of each rank, and the transfers of a call."""
    return [_work(made), *([_transfers(made)] if made.transfers else [])]


def _work(made: Arrangement) -> Table:
    mean = sum(made.pairs) / made.world_size or 1.0
    sizes = ", ".join(f"{axis} {size}" for axis, size in made.axis_sizes.items())
    problem = made.problem
    rows = [
        [str(rank), f"{made.layout.shard_size(rank):,}", str(steps), f"{pairs:,}", times(pairs / mean)]
        for rank, (steps, pairs) in enumerate(zip(made.busy_steps, made.pairs, strict=True))
    ]
    notes = [f"The busiest rank has {made.imbalance:.2f} times the pairs of the average rank."]
    if made.world_size > _MOST_RANKS:
        notes.append(f"Ranks {_MOST_RANKS} to {made.world_size - 1} are left out. --json has all of them.")
    if made.schedule is None:
        notes.append("The strategy states no schedule, so its transfers are not known.")
    return table(
        ["rank", "tokens", "steps", "pairs", "of the mean"],
        rows[:_MOST_RANKS],
        title=f"{made.title}, {sizes}, {made.placement} placement: {problem.concrete_mask.label}, "
        f"{problem.heads_q}:{problem.num_heads_kv} heads of {problem.head_dim}, {problem.direction}",
        notes=tuple(notes),
    )


def _transfers(made: Arrangement) -> Table:
    rows = [
        [each["carries"], each["kind"], each["axis"], str(each["count"]), _mib(each["sent"]), str(each["beside"])]
        for each in _summed(made)
    ]
    made_table = table(
        [*(Head(name, left=True) for name in ("transfer", "kind", "axis")), "count", "MiB sent", "beside a call"],
        rows,
        notes=("MiB are those of the rank that sends most. Transfers beside a call can hide behind it.",),
    )
    total = (Cell("all", mark=Mark.ASIDE), Cell(""), Cell(""), Cell(str(len(made.transfers))), Cell(_mib(made.sent)))
    return made_table.with_row((*total, Cell(str(sum(transfer.beside for transfer in made.transfers)))))


def _summed(made: Arrangement) -> list[dict[str, Any]]:
    """The transfers of one content, kind and axis together."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for transfer in made.transfers:
        move = transfer.move
        about = {"carries": move.carries, "kind": move.kind.replace("_", "-"), "axis": move.axis}
        each = found.setdefault((move.carries, move.kind, move.axis), about | {"count": 0, "sent": 0, "beside": 0})
        each["count"] += 1
        each["sent"] += move.sent
        each["beside"] += transfer.beside
    return list(found.values())


def placement_table(found: Mapping[str, Arrangement | str]) -> Table:
    """Placements side by side; the reason stands where a placement has no layout."""
    least = min((made.imbalance for made in found.values() if isinstance(made, Arrangement)), default=0.0)
    rows = []
    for name, made in found.items():
        if isinstance(made, str):
            rows.append([Cell(name), Cell(""), Cell(""), Cell(""), Cell(made)])
            continue
        busiest, fewest, most = times(made.imbalance), min(made.busy_steps), max(made.busy_steps)
        mark = Mark.BEST if busiest == times(least) else Mark.NONE
        steps = str(most) if fewest == most else f"{fewest} to {most}"
        sent = "" if made.schedule is None else _mib(made.sent)
        rows.append([Cell(name), Cell(busiest, mark=mark), Cell(steps), Cell(sent), Cell("")])
    why = Head("why not", left=True, wrap=True)
    heads = [Head("placement", left=True), Head("busiest rank"), Head("steps"), Head("MiB sent"), why]
    shown = len(heads) if any(isinstance(made, str) for made in found.values()) else len(heads) - 1
    return table(
        heads[:shown],
        [row[:shown] for row in rows],
        notes=("Busiest rank: its visible pairs over those of the average rank.",),
    )


def arrangement_json(made: Arrangement) -> dict[str, Any]:
    """An arrangement as plain data."""
    return {
        "strategy": made.layout.strategy,
        "mesh": made.axis_sizes,
        "placement": made.placement,
        "direction": str(made.problem.direction),
        "imbalance": made.imbalance,
        "ranks": [
            {"tokens": made.layout.shard_size(rank), "steps": steps, "pairs": pairs, "shard": made.layout.shards[rank]}
            for rank, (steps, pairs) in enumerate(zip(made.busy_steps, made.pairs, strict=True))
        ],
        "transfers": None if made.schedule is None else _summed(made),
        "sent": None if made.schedule is None else made.sent,
    }


def _mib(sent: int) -> str:
    return three_digits(sent / 2**20)
