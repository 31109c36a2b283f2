"""Arrangements in numbers: the work of each rank, the transfers of a call, and placements side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longca_bench.reports.layout_arrangement import Arrangement
from longca_bench.reports.table import Cell, Head, Mark, Table, table
from longca_bench.reports.words import three_digits, times

__all__ = ["arrangement_json", "arrangement_tables", "placement_table"]

_MOST_RANKS = 32
_MIB = 2.0**20


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
        [
            Head("transfer", left=True),
            Head("kind", left=True),
            Head("axis", left=True),
            Head("count"),
            Head("MiB sent"),
            Head("beside a call"),
        ],
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
    return three_digits(sent / _MIB)
