"""A chart of strategies: a line a problem, a point a strategy, and the share of one GPU alone across.

A point is the fastest placement of its strategy, with forward and backward together.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from longca_bench.reports.chart_axes import look_of
from longca_bench.reports.strategy_times import PROBLEM, strategy_times
from longca_bench.reports.text import printable
from longca_bench.reports.words import tokens

if TYPE_CHECKING:
    from pandas import DataFrame

    from longca_bench.reports.rows import Rows

__all__ = ["draw_by_strategy", "strategy_points"]

_WIDTH, _LINE, _ABOVE, _BELOW, _LEFT, _RIGHT = 8.2, 0.25, 0.75, 0.55, 2.35, 0.2  # inches
_FONT = 8.0


def strategy_points(rows: Rows) -> DataFrame:
    """The share of one GPU alone by problem and strategy, each in its fastest placement.

    Args:
        rows: Records of several ranks.
    """
    times = strategy_times(rows)
    times = times[times["of_alone"].notna()]
    return times.drop_duplicates([*PROBLEM, "strategy"])[[*PROBLEM, "strategy", "of_alone"]]


def draw_by_strategy(rows: Rows, path: Path, *, dpi: float = 160, metadata: dict[str, str] | None = None) -> None:
    """Draws a chart of strategies by problem.

    Args:
        rows: Records of several ranks.
        path: The file; its suffix says the format.
        dpi: Dots an inch.
        metadata: Text to keep in the file.
    """
    from matplotlib.figure import Figure

    found = strategy_points(rows)
    problems = list(found.groupby(list(PROBLEM), sort=False))
    strategies = list(dict.fromkeys(rows["strategy"].dropna()))
    height = _ABOVE + _LINE * len(problems) + _BELOW
    figure = Figure(figsize=(_WIDTH, height), dpi=dpi)
    place = _LEFT / _WIDTH, _BELOW / height, 1 - (_LEFT + _RIGHT) / _WIDTH, _LINE * len(problems) / height
    axes = figure.add_axes(place)
    for strategy, points in found.groupby("strategy", sort=False):
        keys = [key for key, _ in problems]
        lines = [keys.index(tuple(row)) for row in points[list(PROBLEM)].itertuples(index=False, name=None)]
        colour, marker = look_of(str(strategy), strategies)
        axes.scatter(
            points["of_alone"], lines, s=30, color=colour, marker=marker, linewidths=0.4, edgecolors="w", zorder=3,
            label=printable(str(strategy)),
        )  # fmt: skip
    axes.axvline(1, color="#8a8f98", linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.set(ylim=(len(problems) - 0.45, -0.55), yticks=range(len(problems)))
    axes.set_yticklabels([_words(points) for _, points in problems], parse_math=False)
    axes.set_xlabel("share of one GPU alone, forward and backward together", fontsize=_FONT)
    axes.tick_params(labelsize=_FONT - 0.5, length=0)
    axes.grid(color="#e8eaee", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    device = ", ".join(dict.fromkeys(map(str, rows["device"])))
    title = f"{device}: strategies in their fastest placements"
    figure.text(0.012, 1 - 0.08 / height, printable(title), fontsize=_FONT + 1.5, va="top", parse_math=False)
    figure.legend(
        loc="upper left", bbox_to_anchor=(0.005, 1 - 0.28 / height), ncols=len(strategies), frameon=False,
        fontsize=_FONT, handletextpad=0.2, columnspacing=1.2, borderaxespad=0.2,
    )  # fmt: skip
    figure.savefig(path, metadata=metadata)


def _words(points: DataFrame) -> str:
    about = points.iloc[0]
    return printable(f"{about['mask']}, {tokens(about['seqlen'])} on {about['world_size']} ranks")
