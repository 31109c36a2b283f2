"""A comparison as tables, one a direction and kernel, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from longca_bench.reports.comparison import KEY, Comparison, Pair, verdict
from longca_bench.reports.run_cells import mask_name, shape_cells, shape_columns, three_digits, tokens, who
from longca_bench.reports.text import safe
from longca_bench.reports.whole_table import print_whole

if TYPE_CHECKING:
    from rich.console import Console

    from longca_bench.measuring.records import Record
    from longca_bench.measuring.statistics import Interval

__all__ = ["comparison_json", "print_comparison"]

_STYLES = {"B faster": "green", "A faster": "red", "too few samples": "yellow"}
_WIDE = 100  # columns from which both times are shown beside their ratio
_MOST_LISTED = 20  # cases that a list names before it only counts


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Prints each pair's ratio, what is not comparable, and what all pairs show together.

    Args:
        console: Where to.
        comparison: What two runs show.
    """
    groups: dict[tuple[str, str], list[Pair]] = {}
    for pair in comparison.compared:
        groups.setdefault((pair.a.direction, who(pair.a)), []).append(pair)
    for (direction, kernel), pairs in groups.items():
        title = f"{safe(kernel)}, {safe(direction)}"
        print_whole(console, _table(title, pairs, with_times=console.width >= _WIDE))
    for line in (*_listed(comparison), *_told(comparison)):
        console.print(line)


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
    }  # fmt: skip


def _table(title: str, pairs: Sequence[Pair], *, with_times: bool) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("mask")
    shape = shape_columns([pair.a for pair in pairs])
    for head in ("tokens", *shape, *(("A ms", "B ms") if with_times else ()), "A/B", "95 % interval"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for pair in sorted(pairs, key=lambda pair: pair.a.seqlen):
        assert pair.ratio is not None, "only pairs with a ratio are in tables"
        shown = verdict(pair.ratio)
        times = [_milliseconds(record) for record in (pair.a, pair.b)] if with_times else []
        ratio = Text(_ratio(pair.ratio.value), style=_STYLES.get(shown, ""))
        words = Text(shown, style=_STYLES.get(shown, "dim"))
        about = [safe(mask_name(pair.a.pattern, pair.a.factors)), tokens(pair.a.seqlen), *shape_cells(pair.a, shape)]
        table.add_row(*about, *times, ratio, _ends(pair.ratio), words)
    return table


def _milliseconds(record: Record) -> str:
    return "" if record.median is None else three_digits(record.median * 1e3)


def _ends(interval: Interval) -> str:
    return f"{_ratio(interval.low)}–{_ratio(interval.high)}" if interval.is_known else "unknown"


def _ratio(value: float) -> str:
    """Three decimals near 1, three digits far from it."""
    return f"{value:.3f}" if 0.1 <= value < 10 else three_digits(value)


def _listed(comparison: Comparison) -> Iterator[str]:
    """The cases that have no ratio, and why."""
    changed = [f"{_case(p.a)}: {p.a.status} in A, {p.b.status} in B" for p in comparison.changed]
    yield from _list("Other status", changed)
    yield from _list("In A alone", [f"{_case(record)}: {record.status}" for record in comparison.only_a])
    yield from _list("In B alone", [f"{_case(record)}: {record.status}" for record in comparison.only_b])
    neither = len(comparison.pairs) - len(comparison.compared) - len(comparison.changed)
    if neither:
        yield f"{_count(neither)} measured in neither run."


def _list(title: str, lines: Sequence[str]) -> Iterator[str]:
    if not lines:
        return
    yield f"[bold]{title}[/], {_count(len(lines))}:"
    yield from (f"  {line}" for line in lines[:_MOST_LISTED])
    if len(lines) > _MOST_LISTED:
        yield f"  and {len(lines) - _MOST_LISTED} more; --json lists them all"


def _told(comparison: Comparison) -> Iterator[str]:
    """What differs between the environments, how to read the ratios, and what they come to."""
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
        f"A/B is median(A) / median(B): above 1, B is faster. {shown} of {_count(len(compared))} show a difference; of "
        "cases that are alike, about 1 in 20 does by chance. Intervals know of the spread within each run, not of that "
        "between runs."
    )
    if any(min(len(pair.a.samples), len(pair.b.samples)) < ENOUGH for pair in compared):
        yield f"Of cases with fewer than {ENOUGH} samples, intervals hold the truth in about 90 of 100, not 95."
    mean = comparison.mean
    yield (
        f"[bold]Geometric mean of {_count(len(compared))}: {_ratio(mean.value)}[/], 95 % interval {_ends(mean)}: "
        f"[bold]{verdict(mean)}[/]"
    )


def _count(cases: int) -> str:
    return "1 case" if cases == 1 else f"{cases} cases"


def _case(record: Record) -> str:
    mask = mask_name(record.pattern, record.factors)
    words = (who(record), mask, tokens(record.seqlen), record.direction, record.dtype)
    shape = f"{record.heads_q}:{record.heads_kv} heads of {record.head_dim}, seed {record.seed}"
    return f"{safe(' '.join(words))}, {shape}"


def _interval_json(interval: Interval | None) -> dict[str, Any] | None:
    """JSON has no infinity: null stands for an end that is not known."""
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
