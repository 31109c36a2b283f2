"""How throughput follows the share of blocks that is kept: curves, where they meet dense attention, and their chart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from measured_groups import FASTEST_FULL
from measured_page import link, table
from sparse_tables import block_of, block_sparse, heads_of

from longca_bench.measuring.records import Record
from longca_bench.reports.chart_axes import look_of
from longca_bench.reports.run_cells import tokens
from longca_bench.reports.run_source import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ALL = 0.999  # share from which no block is left out


@dataclass(frozen=True)
class Point:
    """What a kernel reaches where a share of the pairs is visible.

    Attributes:
        share: The share of the pairs.
        tflops: Throughput.
        time: Time over that of dense attention in the same run.
    """

    share: float
    tflops: float
    time: float


@dataclass(frozen=True)
class Panel:
    """The curves of one direction, length, kind of heads and size of blocks.

    Attributes:
        direction: `forward` or `backward`.
        seqlen: Tokens.
        heads: Such as `64:8`.
        block: Tokens a block.
        full: Throughput of dense attention.
        curves: The points of each kernel, by share.
    """

    direction: str
    seqlen: int
    heads: str
    block: int
    full: float
    curves: dict[str, list[Point]]

    @property
    def title(self) -> str:
        """Its name in the chart and the table."""
        return f"{self.direction}, {tokens(self.seqlen)}, {self.heads}, blocks of {self.block}"


def panels(runs: Sequence[Run]) -> list[Panel]:
    """A panel for whatever was measured in runs that have dense attention beside it, with two shares or more."""
    points: dict[tuple[Any, ...], dict[str, dict[float, list[Point]]]] = {}
    full: dict[tuple[Any, ...], list[float]] = {}
    for record, block, dense in _beside_dense(runs):
        assert record.median is not None
        assert record.tflops is not None
        assert dense.median is not None
        assert dense.tflops is not None
        key = *_shape(record), block
        full.setdefault(key, []).append(dense.tflops)
        point = Point(record.density, record.tflops, record.median / dense.median)
        points.setdefault(key, {}).setdefault(record.kernel, {}).setdefault(record.density, []).append(point)
    found = []
    for key in sorted(points, key=lambda key: (key[0] != "forward", *key[1:])):
        curves = {kernel: [_middle(by_share[s]) for s in sorted(by_share)] for kernel, by_share in points[key].items()}
        if any(len(curve) > 1 for curve in curves.values()):
            direction, seqlen, _, heads, block = key
            found.append(Panel(direction, seqlen, heads, block, median(full[key]), curves))
    return found


def _beside_dense(runs: Sequence[Run]) -> Iterator[tuple[Record, int, Record]]:
    """Records on uniform blocks, each with their size and the record of dense attention of its shape in its run."""
    for run in runs:
        dense = {_shape(r): r for r in run.records if (r.kernel, r.pattern, r.status) == (FASTEST_FULL, "full", "ok")}
        for record in block_sparse(run):
            if (block := block_of(record)) and _shape(record) in dense:
                yield record, block, dense[_shape(record)]


def _shape(record: Record) -> tuple[str, int, int, str]:
    return record.direction, record.seqlen, -(record.heads_q // record.heads_kv), heads_of(record)


def _middle(points: Sequence[Point]) -> Point:
    return Point(points[0].share, median(p.tflops for p in points), median(p.time for p in points))


def crossing(curve: Sequence[Point]) -> str:
    """The share below which a kernel takes less time than dense attention, between the shares measured next to it."""
    first, last = curve[0], curve[-1]
    if first.time >= 1:
        return f"not from {first.share:.0%} on"
    for low, high in pairwise(curve):
        if high.time >= 1:
            return f"{low.share + (1 - low.time) / (high.time - low.time) * (high.share - low.share):.0%}"
    return "always" if last.share >= _ALL else f"above {last.share:.0%}"


def crossings(runs: Sequence[Run]) -> str:
    """Kernels by panels: the share kept below which each is faster than dense attention."""
    found = panels(runs)
    if not found:
        return f"*Not measured: no run has several shares kept, and {FASTEST_FULL} on full attention beside them.*"
    kernels = dict.fromkeys(kernel for panel in found for kernel in panel.curves)
    body = [
        [f"`{kernel}`", *(crossing(panel.curves[kernel]) if kernel in panel.curves else "" for panel in found)]
        for kernel in kernels
    ]
    reach = [_reach(panel) for panel in found]
    body.append(["*measured*", *reach])
    return table(["kernel", *(panel.title for panel in found)], body)


def _reach(panel: Panel) -> str:
    shares = sorted({point.share for curve in panel.curves.values() for point in curve})
    return f"{shares[0]:.0%} to {shares[-1]:.0%}"


def chart(runs: Sequence[Run], folder: Path) -> str:
    """Draws the panels, and gives the picture's Markdown."""
    found = panels(runs)
    if not found:
        return "*No chart: nothing was measured at several shares kept.*"
    folder.mkdir(parents=True, exist_ok=True)
    draw(found, folder / "kept.png")
    return f"![Throughput by the share of blocks kept, a line a kernel]({link(folder / 'kept.png')})"


def draw(found: Sequence[Panel], path: Path) -> None:
    """Throughput by the share kept, a line a kernel, and dashed what dense attention's time would be."""
    from matplotlib.figure import Figure

    columns = min(2, len(found))
    lines = -(-len(found) // columns)
    figure = Figure(figsize=(3.9 * columns + 0.6, 2.9 * lines + 0.3), dpi=200, layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    kernels = list(dict.fromkeys(kernel for panel in found for kernel in panel.curves))
    handles: dict[str, Any] = {}
    for axes, panel in zip(grid.flat, found, strict=False):
        _draw_panel(axes, panel, kernels, handles)
    for axes in grid.flat[len(found) :]:
        axes.set_visible(False)
    most = max(point.tflops for panel in found for curve in panel.curves.values() for point in curve)
    grid[0, 0].set_ylim(0, max(most, *(panel.full for panel in found)) * 1.05)
    grid[0, 0].set_xlim(0, 1.02)
    figure.legend(
        handles.values(), handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False, fontsize=6.5
    )
    figure.savefig(path)


def _draw_panel(axes: Axes, panel: Panel, kernels: Sequence[str], handles: dict[str, Any]) -> None:
    label = f"the time of {FASTEST_FULL} on full attention"
    (handles[label],) = axes.plot([0, 1], [0, panel.full], color="black", linestyle="--", linewidth=0.9)
    for kernel, curve in panel.curves.items():
        colour, marker = look_of(kernel, kernels)
        style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 3.5, "linewidth": 1.2}
        (handles[kernel],) = axes.plot([p.share for p in curve], [p.tflops for p in curve], **style)
    axes.set_title(panel.title, fontsize=7.5)
    axes.set_xlabel("share of the pairs that is visible", fontsize=7)
    axes.set_ylabel("TFLOP/s", fontsize=7)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.tick_params(labelsize=6.5, labelbottom=True, labelleft=True)
    axes.grid(True, which="major", color="#e3e6ea", linewidth=0.6)
