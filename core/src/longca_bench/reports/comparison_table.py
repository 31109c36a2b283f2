"""A comparison as tables, one for each kernel and direction, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from longca_bench.reports.build import tables_of
from longca_bench.reports.comparison import KEY, Comparison, Pair, verdict
from longca_bench.reports.render_terminal import print_tables
from longca_bench.reports.rows import Rows
from longca_bench.reports.text import safe
from longca_bench.reports.view import Value, View
from longca_bench.reports.words import counted, mask_name, ratio_text, shared_by, tokens

if TYPE_CHECKING:
    from rich.console import Console

    from longca_bench.measuring.records import Record
    from longca_bench.measuring.statistics import Interval
    from longca_bench.reports.table import Table

__all__ = ["comparison_json", "comparison_tables", "print_comparison"]

_VIEW = View(
    "median(A) / median(B) of each case",
    tables=("who", "direction"),
    title="{who}, {direction}",
    sort=("seqlen",),
    rows=("mask", "seqlen"),
    varying=("heads", "head_dim", "dtype", "seed"),
    apart=("case",),
    values=tuple(Value(name, "first") for name in ("a_ms", "b_ms", "ratio", "interval", "verdict")),
)
_MOST_LISTED = 20  # cases that a list names before it only counts


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Prints the ratio of each pair, the cases without a ratio, and the mean of all ratios.

    Args:
        console: Where to.
        comparison: The comparison of two runs.
    """
    print_tables(console, comparison_tables(comparison))
    for line in (*_listed(comparison), *_told(comparison)):
        console.print(line)


def comparison_tables(comparison: Comparison) -> list[Table]:
    """The ratio of each pair with its interval, a table for each kernel and direction."""
    from pandas import Series

    pairs = comparison.compared
    if not pairs:
        return []
    ratios = [pair.ratio for pair in pairs if pair.ratio is not None]
    rows = Rows.of(pair.a for pair in pairs)
    columns = {
        "b_ms": [1e3 * pair.b.median if pair.b.median else None for pair in pairs],
        "ratio": [ratio.value for ratio in ratios],
        "interval": [_ends(ratio) for ratio in ratios],
        "verdict": [verdict(ratio) for ratio in ratios],
    }
    for name, values in columns.items():
        rows = rows.with_column(name, Series(values, index=rows.index))
    return tables_of(_VIEW, rows)


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain data."""
    return {
        "ratio": "median(A) / median(B): above 1, B is faster",
        "geometric_mean": _interval_json(comparison.mean),
        "pairs": [_pair_json(pair) for pair in comparison.pairs],
        "only_a": [_case_json(record) for record in comparison.only_a],
        "only_b": [_case_json(record) for record in comparison.only_b],
        "differences": [
            {"name": d.name, "a": d.a, "b": d.b, "forbids": d.forbids} for d in comparison.differences
        ],
        "complaints": list(comparison.complaints),
    }  # fmt: skip


def _ends(interval: Interval) -> str:
    return f"{ratio_text(interval.low)}–{ratio_text(interval.high)}" if interval.is_known else "unknown"


def _listed(comparison: Comparison) -> Iterator[str]:
    """The cases without a ratio, and the reason."""
    changed = [f"{_case(p.a)}: {p.a.status} in A, {p.b.status} in B" for p in comparison.changed]
    yield from _list("Other status", changed)
    yield from _list("In A alone", [f"{_case(record)}: {record.status}" for record in comparison.only_a])
    yield from _list("In B alone", [f"{_case(record)}: {record.status}" for record in comparison.only_b])
    neither = len(comparison.pairs) - len(comparison.compared) - len(comparison.changed)
    if neither:
        yield f"{counted(neither)} measured in neither run."


def _list(title: str, lines: Sequence[str]) -> Iterator[str]:
    if not lines:
        return
    yield f"[bold]{title}[/], {counted(len(lines))}:"
    yield from (f"  {line}" for line in lines[:_MOST_LISTED])
    if len(lines) > _MOST_LISTED:
        yield f"  and {len(lines) - _MOST_LISTED} more; --json lists them all"


def _told(comparison: Comparison) -> Iterator[str]:
    """The differences between the environments, the meaning of the ratios, and their mean."""
    from longca_bench.measuring.statistics import ENOUGH

    for d in comparison.differences:
        mark = "[yellow]unlike, compared all the same:[/]" if d.forbids else "also unlike:"
        yield f"{mark} {safe(d.name)} is {safe(d.a)} in A and {safe(d.b)} in B"
    if comparison.mean is None:
        yield "No case was measured in both runs: nothing to compare."
        return
    compared = comparison.compared
    shown = sum(pair.ratio is not None and "faster" in verdict(pair.ratio) for pair in compared)
    yield (
        f"A/B is median(A) / median(B): above 1, B is faster. {shown} of {counted(len(compared))} show a difference. "
        "About 1 in 20 equal cases does so by chance. Intervals know the spread within each run, and not the spread "
        "between runs."
    )
    if any(min(len(pair.a.samples), len(pair.b.samples)) < ENOUGH for pair in compared):
        yield f"Intervals of cases with fewer than {ENOUGH} samples hold the truth in about 90 of 100, and not in 95."
    mean = comparison.mean
    yield (
        f"[bold]Geometric mean of {counted(len(compared))}: {ratio_text(mean.value)}[/], 95 % interval {_ends(mean)}: "
        f"[bold]{verdict(mean)}[/]"
    )


def _case(record: Record) -> str:
    mask = mask_name(record.pattern, record.factors)
    whose = shared_by(record.kernel, record.strategy, record.placement, record.mesh, record.transport)
    words = (whose, mask, tokens(record.seqlen), record.direction, record.dtype)
    shape = f"{record.heads_q}:{record.heads_kv} heads of {record.head_dim}, seed {record.seed}"
    return f"{safe(' '.join(words))}, {shape}"


def _interval_json(interval: Interval | None) -> dict[str, Any] | None:
    """JSON has no infinity. Null stands for an unknown end."""
    if interval is None:
        return None
    ends = {"low": interval.low, "high": interval.high} if interval.is_known else {"low": None, "high": None}
    return {"value": interval.value, **ends, "verdict": verdict(interval)}


def _case_json(record: Record) -> dict[str, Any]:
    return {**_about(record), "status": record.status}


def _about(record: Record) -> dict[str, Any]:
    return {**{name: getattr(record, name) for name in KEY}, "factors": record.factors}


def _pair_json(pair: Pair) -> dict[str, Any]:
    sides = {
        side: {"status": record.status, "median": record.median, "samples": len(record.samples)}
        for side, record in (("a", pair.a), ("b", pair.b))
    }
    return {**_about(pair.a), **sides, "ratio": _interval_json(pair.ratio)}
