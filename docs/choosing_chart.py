"""The chart of predicted over measured times: a point a call, coloured by the family of its mask."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pandas import DataFrame

from longca_bench.reports.rows import Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PROBLEMS = Path(__file__).resolve().parents[1] / "results" / "h200" / "advice" / "problems" / "problems.json"
#: Families of patterns, for the chart: each with its colour and marker.
FAMILIES: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "full and causal": ("#120b7a", "o", ("full", "causal")),
    "documents": ("#c28e24", "s", ("full_document", "causal_document", "block_causal_document")),
    "windows": (
        "#a4c025",
        "^",
        ("full_sliding_window", "causal_sliding_window", "global_sliding_window"),
    ),
    "prefixes and blockwise": (
        "#7f2117",
        "D",
        ("prefix_lm_causal", "prefix_lm_document", "shared_question", "causal_blockwise"),
    ),
    "block-sparse": ("#0ec7de", "v", ("uniform_block_sparse", "variable_block_sparse")),
}
_RATIOS = 0.5, 2.0  # the ends of the axis of ratios
_FONT = 7.0


@dataclass(frozen=True)
class Point:
    """A call that was predicted without the calls that look like it, in milliseconds.

    Attributes:
        kernel: Its kernel.
        direction: `forward`, or `backward` alone.
        pattern: The mask's pattern.
        seqlen: Tokens.
        measured: What it takes.
        predicted: What is predicted.
    """

    kernel: str
    direction: str
    pattern: str
    seqlen: int
    measured: float
    predicted: float

    @property
    def ratio(self) -> float:
        """Measured over predicted time."""
        return self.measured / self.predicted


def points(rows: Rows) -> list[Point]:
    """Calls that were predicted without the calls that look like them.

    Args:
        rows: Rows of `results/h200/advice/leave_out.csv`.
    """
    names = ("kernel", "direction", "pattern", "seqlen", "measured", "predicted")
    return [Point(*line) for line in rows.frame(names).dropna().itertuples(index=False, name=None)]


def later() -> list[Point]:
    """Calls of the problems that were measured after they were predicted."""
    found = json.loads(PROBLEMS.read_text(encoding="utf-8"))["problems"]
    return [
        Point(way["kernel"], direction, row["problem"]["mask"], row["problem"]["seqlen"], *_milliseconds(time))
        for row in found
        for way in row.get("ways", ())
        for direction, time in way["times"].items()
        if direction != "total" and time["measured"] and time["predicted"]
    ]


def _milliseconds(time: Mapping[str, float]) -> tuple[float, float]:
    return 1e3 * time["measured"], 1e3 * time["predicted"]


def figures(rows: Rows) -> DataFrame:
    """The figures that the chart shows."""
    return DataFrame([asdict(point) for point in (*points(rows), *later())])


def draw(rows: Rows, path: Path, *, metadata: dict[str, str] | None = None) -> None:
    """Predicted over measured milliseconds, and their ratio below; a column a direction.

    Args:
        rows: Rows of `results/h200/advice/leave_out.csv`.
        path: The file.
        metadata: Text to keep in the file.
    """
    found, after = points(rows), later()
    from matplotlib.figure import Figure

    directions = [name for name in ("forward", "backward") if any(point.direction == name for point in found)]
    figure = Figure(figsize=(3.7 * len(directions) + 0.2, 5.6), dpi=160, layout="constrained")
    times = [time for point in (*found, *after) for time in (point.measured, point.predicted)]
    span = min(times) / 1.5, max(times) * 1.5
    handles: dict[str, Any] = {}
    heights = {"height_ratios": (3.2, 1.6)}
    panels = figure.subplots(2, len(directions), squeeze=False, sharex=True, sharey="row", gridspec_kw=heights)
    for (upper, lower), direction in zip(panels.T, directions, strict=True):
        groups = list(_groups([p for p in found if p.direction == direction], after, direction))
        _draw_times(upper, groups, span, handles)
        _draw_ratios(lower, groups, span)
        upper.set_title(direction, fontsize=_FONT + 1.5, loc="left")
        lower.set_xlabel("measured, ms", fontsize=_FONT + 1)
    panels[0, 0].set_ylabel("predicted, ms", fontsize=_FONT + 1)
    panels[1, 0].set_ylabel("predicted / measured", fontsize=_FONT + 1)
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=4, frameon=False, fontsize=_FONT)
    figure.savefig(path, metadata=metadata)


def _groups(found: Sequence[Point], after: Sequence[Point], direction: str) -> Iterator[tuple[str, str, str, Any]]:
    """What is drawn in one look: its label, colour and marker, and its points."""
    for family, (colour, marker, patterns) in FAMILIES.items():
        yield family, colour, marker, [point for point in found if point.pattern in patterns]
    mine = [point for point in after if point.direction == direction]
    if mine:
        yield "measured after they were predicted", "#d1155e", "x", mine


def _draw_times(
    axes: Axes, groups: Sequence[tuple[str, str, str, Any]], span: tuple[float, float], handles: dict[str, Any]
) -> None:
    (handles["predicted = measured"],) = axes.plot(span, span, color="black", linewidth=0.8, zorder=1)
    for name, colour, marker, found in groups:
        handles[name] = _scatter(axes, [p.measured for p in found], [p.predicted for p in found], colour, marker)
    axes.set(xscale="log", yscale="log", xlim=span, ylim=span)
    _prepare(axes)


def _draw_ratios(axes: Axes, groups: Sequence[tuple[str, str, str, Any]], span: tuple[float, float]) -> None:
    """Predicted over measured time; what is beyond the axis is at its edge."""
    low, high = _RATIOS
    axes.plot(span, (1, 1), color="black", linewidth=0.8, zorder=1)
    axes.axhspan(1 / 1.1, 1.1, color="#eceff2", zorder=0)
    for _, colour, marker, found in groups:
        ratios = [min(max(1 / point.ratio, low), high) for point in found]
        _scatter(axes, [point.measured for point in found], ratios, colour, marker)
    axes.set(yscale="log", ylim=(low / 1.06, high * 1.06))
    axes.set_yticks((0.5, 0.7, 0.9, 1.1, 1.4, 2), minor=False)
    axes.set_yticks((), minor=True)
    _prepare(axes)


def _scatter(axes: Axes, across: Sequence[float], up: Sequence[float], colour: str, marker: str) -> Any:
    crosses = marker == "x"
    width, alpha = (0.8, 1.0) if crosses else (0.0, 0.55)
    return axes.scatter(
        across, up, s=10, color=colour, marker=marker, alpha=alpha, linewidths=width, zorder=2 + crosses
    )


def _prepare(axes: Axes) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.tick_params(labelsize=_FONT)
    axes.grid(color="#e3e6ea", linewidth=0.5)
    axes.set_axisbelow(True)
