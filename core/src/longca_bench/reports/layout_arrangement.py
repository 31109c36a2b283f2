"""Arrangements: how the ranks of a strategy share one problem, from its layout and schedule alone, and its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from longca.manifests import Layout, Problem, Transport
from longca.manifests.schedule import Move, Schedule
from longca.manifests.step_cuts import rank_areas, step_areas
from longca.manifests.steps import Step
from longca_bench.reports.table import Cell, Head, Mark, Table, table
from longca_bench.reports.words import three_digits, times

if TYPE_CHECKING:
    from longca.plugins import Registry

__all__ = ["Arrangement", "arrange", "arrangement_json", "arrangement_tables", "placement_table"]

_MOST_RANKS = 32


@dataclass(frozen=True, eq=False)
class Arrangement:
    """How ranks share a problem. The schedule is None if the strategy states none."""

    title: str
    problem: Problem
    layout: Layout
    placement: str
    schedule: Schedule | None

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Ranks along each axis, the outermost first."""
        return dict(self.layout.axis_sizes)

    @cached_property
    def calls(self) -> list[tuple[int, float, float]]:
        """The attention calls of each rank: the index of the step, and the first and the last share of its heads."""
        done: dict[int, float] = {}
        made = []
        for phase in self.schedule or ():
            if phase.step is not None:
                first = done.get(phase.step, 0.0)
                done[phase.step] = first + phase.share
                made.append((phase.step, first, done[phase.step]))
        return made if self.schedule else [(step, 0.0, 1.0) for step in range(max(map(len, self.layout.steps)))]

    @cached_property
    def transfers(self) -> list[tuple[Move, int, bool]]:
        """Each move, the index of the call beside it or behind it, and whether that call runs meanwhile."""
        call, found = 0, []
        for phase in self.schedule or ():
            beside = phase.step is not None and bool(np.any(phase.beside))
            found += [(move, call, beside) for move in phase.moves]
            call += phase.step is not None
        return found

    def step(self, rank: int, call: int) -> Step | None:
        """A rank's work in a call. None if the rank has no such step."""
        (number, *shares), steps = self.calls[call], self.layout.steps[rank]
        if number >= len(steps):
            return None
        whole = steps[number]
        heads_q, heads_kv = (
            tuple(round(start + (stop - start) * share) for share in shares)
            for start, stop in (whole.heads_q, whole.heads_kv)
        )
        return Step(whole.q_ranges, whole.k_ranges, heads_q, heads_kv)  # type: ignore[arg-type]  # two shares each

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
        return np.bincount(self.layout.table.ranks[shows], minlength=self.layout.world_size).tolist()

    @property
    def sent(self) -> int:
        """Bytes that leave the rank that sends most, in the whole call."""
        return sum(move.sent for move, *_ in self.transfers)


def arrange(
    registry: Registry,
    strategy: str,
    problem: Problem,
    axis_sizes: Mapping[str, int],
    placement: str | None = None,
) -> Arrangement:
    """The arrangement of a problem by a strategy. None is the strategy's first placement.

    Raises:
        LongCAError: An argument is unknown, the strategy has no layout for the problem, or its manifest fails.
    """
    manifest = registry.strategy(strategy)
    layout = registry.layout(strategy, problem, axis_sizes, placement)
    # Pictures show the collectives of NCCL.
    schedule = registry.stated(strategy, "schedule", problem, layout, True, Transport.COLLECTIVES)
    return Arrangement(manifest.title or strategy, problem, layout, placement or manifest.placements[0], schedule)


def arrangement_tables(made: Arrangement) -> list[Table]:
    """The work of each rank, and the transfers of a call."""
    return [_work(made), *([_transfers(made)] if made.transfers else [])]


def _work(made: Arrangement) -> Table:
    ranks = made.layout.world_size
    mean = sum(made.pairs) / ranks or 1.0
    sizes = ", ".join(f"{axis} {size}" for axis, size in made.axis_sizes.items())
    rows = [
        [str(rank), f"{made.layout.shard_size(rank):,}", str(steps), f"{pairs:,}", times(pairs / mean)]
        for rank, (steps, pairs) in enumerate(zip(made.busy_steps, made.pairs, strict=True))
    ]
    notes = [f"The busiest rank has {made.imbalance:.2f} times the pairs of the average rank."]
    if ranks > _MOST_RANKS:
        notes.append(f"Ranks {_MOST_RANKS} to {ranks - 1} are left out. --json has all of them.")
    if made.schedule is None:
        notes.append("The strategy states no schedule, so its transfers are not known.")
    return table(
        ["rank", "tokens", "steps", "pairs", "of the mean"],
        rows[:_MOST_RANKS],
        title=f"{made.title}, {sizes}, {made.placement} placement",
        notes=tuple(notes),
    )


def _transfers(made: Arrangement) -> Table:
    rows = [
        [each["carries"], each["kind"], each["axis"], str(each["count"]), _mib(each["sent"]), str(each["beside"])]
        for each in _summed(made)
    ]
    total = ("all", "", "", len(made.transfers), _mib(made.sent), sum(beside for *_, beside in made.transfers))
    return table(
        [*(Head(name, left=True) for name in ("transfer", "kind", "axis")), "count", "MiB sent", "beside a call"],
        [*rows, [Cell(str(text), mark=Mark.ASIDE) for text in total]],
        notes=("MiB are those of the rank that sends most. Transfers beside a call can hide behind it.",),
    )


def _summed(made: Arrangement) -> list[dict[str, Any]]:
    """The transfers of one content, kind and axis together."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for move, _, beside in made.transfers:
        about = {"carries": move.carries, "kind": move.kind.replace("_", "-"), "axis": move.axis}
        each = found.setdefault((move.carries, move.kind, move.axis), about | {"count": 0, "sent": 0, "beside": 0})
        each["count"] += 1
        each["sent"] += move.sent
        each["beside"] += beside
    return list(found.values())


def placement_table(found: Mapping[str, Arrangement | str]) -> Table:
    """Placements side by side; the reason stands where a placement has no layout."""
    least = min((made.imbalance for made in found.values() if isinstance(made, Arrangement)), default=0.0)
    rows: list[list[Cell | str]] = []
    for name, made in found.items():
        if isinstance(made, str):
            rows.append([name, "", "", "", made])
            continue
        busiest, fewest, most = times(made.imbalance), min(made.busy_steps), max(made.busy_steps)
        mark = Mark.BEST if busiest == times(least) else Mark.NONE
        steps = str(most) if fewest == most else f"{fewest} to {most}"
        rows.append([name, Cell(busiest, mark=mark), steps, "" if made.schedule is None else _mib(made.sent), ""])
    why = [Head("why not", left=True, wrap=True)] if any(isinstance(made, str) for made in found.values()) else []
    heads: list[str | Head] = ["placement", "busiest rank", "steps", "MiB sent", *why]
    note = "Busiest rank: its visible pairs over those of the average rank."
    return table(heads, [row[: len(heads)] for row in rows], notes=(note,))


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
