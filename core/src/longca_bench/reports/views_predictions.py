"""Views of how far predictions are from measurements, from the records in `results/h200/advice`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from longca_bench.reports.table import Cell, Head, Table
from longca_bench.reports.words import brief_percent, three_digits, time_text

if TYPE_CHECKING:
    from longca_bench.reports.rows import Rows

__all__ = ["figures", "problems", "worst"]


#: The figures of a record, each with its head and how it reads.
_FIGURES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "name": ("", str),
    "problems": ("problems", "{:.0f}".format),
    "calls": ("calls", "{:.0f}".format),
    "unpredicted": ("without a prediction", "{:.0f}".format),
    "median": ("median error", brief_percent),
    "p90": ("90th percentile", brief_percent),
    "mean": ("mean", brief_percent),
    "p95": ("95th percentile", brief_percent),
    "max": ("worst", brief_percent),
    "ways_compared": ("measured choices", str),
    "errors.calls": ("calls", "{:.0f}".format),
    "errors.unpredicted": ("without a prediction", str),
    "errors.median": ("median error", brief_percent),
    "errors.p90": ("90th percentile", brief_percent),
    "median_error": ("median error", brief_percent),
    "p90_error": ("90th percentile", brief_percent),
    "coverage": ("times in their interval", brief_percent),
    "totals_inside": ("times in their interval", brief_percent),
    "fastest_was_first": ("first choice was the fastest", brief_percent),
    "mean_regret": ("mean regret", brief_percent),
    "worst_regret": ("worst regret", brief_percent),
}


def figures(rows: Rows) -> list[Table]:
    """Errors of predictions, or how much longer the recommended choice takes than the fastest, as shares."""
    known = [name for name in _FIGURES if name in rows.names and (name != "unpredicted" or rows[name].any())]
    heads = tuple(Head(_FIGURES[name][0], left=name == "name") for name in known)
    lines = (
        tuple(Cell(_FIGURES[name][1](value)) for name, value in zip(known, line, strict=True))
        for line in rows.frame(known).itertuples(index=False, name=None)
    )
    return [Table(heads, tuple(lines))]


def worst(rows: Rows, most: int = 5) -> list[Table]:
    """The calls whose predictions are furthest off, by the ratio of both times.

    Args:
        rows: Rows of `results/h200/advice/leave_out.csv`, in milliseconds.
        most: The number of calls.
    """
    frame = rows.frame(("kernel", "direction", "pattern", "seqlen", "predicted", "measured")).dropna()
    frame["ratio"] = frame["measured"] / frame["predicted"]
    off = frame["ratio"].where(frame["ratio"] > 1, 1 / frame["ratio"]).nlargest(most).index
    heads = [Head(name, left=True, code=name != "direction") for name in ("kernel", "direction", "mask")]
    heads += map(Head, ("tokens", "predicted", "measured", "measured / predicted"))
    lines = [
        (*map(Cell, (kernel, direction, pattern, str(seqlen))), *(Cell(time_text(each / 1e3)) for each in times),
         Cell(f"{three_digits(ratio)} ×"))
        for kernel, direction, pattern, seqlen, *times, ratio in frame.loc[off].itertuples(index=False, name=None)
    ]  # fmt: skip
    return [Table(tuple(heads), tuple(lines))]


def problems(rows: Rows) -> list[Table]:
    """Problems that were measured after they were predicted: the first choice and the fastest of the measured choices.

    Args:
        rows: Rows of `results/h200/advice/problems/problems.json`.
    """
    names = ("problem", "first choice", "predicted", "measured", "error", "fastest", "regret")
    heads = tuple(
        Head(name, left=name in ("problem", "first choice", "fastest"), code=name.startswith("f")) for name in names
    )
    known = ["name", "ways", "fastest", "regret", *(["message"] if "message" in rows.names else [])]
    lines = [_problem(**dict(zip(known, line, strict=True))) for line in rows.frame(known).itertuples(index=False)]
    return [Table(heads, tuple(lines))]


def _problem(
    name: str, ways: Any, fastest: str | None, regret: float | None, message: str | None = None
) -> tuple[Cell, ...]:
    if not isinstance(ways, list):
        return tuple(map(Cell, (name, message or "", *[""] * 5)))
    first = ways[0]
    total = first["times"]["total"]
    times = ("–" if total[each] is None else time_text(total[each]) for each in ("predicted", "measured"))
    error = "–" if total["error"] is None else f"{total['error']:+.1%}"
    lost = "–" if regret is None else f"{regret:.1%}"
    return tuple(map(Cell, (name, first["title"], *times, error, fastest or "–", lost)))
