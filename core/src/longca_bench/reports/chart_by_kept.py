"""A chart of block-sparse kernels: throughput by the share of visible pairs, a panel for each kind of heads and blocks.

The dashed line is dense attention's time as throughput of visible pairs. A kernel above it takes less time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.errors import RequestError
from longca_bench.reports.chart_axes import look_of
from longca_bench.reports.columns import FULL_SPEED
from longca_bench.reports.text import printable
from longca_bench.reports.views_sparse import PANEL, curves, panel_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from longca_bench.reports.rows import Rows

__all__ = ["draw_by_kept"]

_FONT, _COLUMNS = 7.0, 2


def draw_by_kept(
    rows: Rows, path: Path, *, base: str = FULL_SPEED, dpi: float = 160, metadata: dict[str, str] | None = None
) -> None:
    """Draws throughput by the share of visible pairs.

    Args:
        rows: Records with several shares, and dense attention beside them.
        path: The file; its suffix says the format.
        base: The kernel of dense attention.
        dpi: Dots an inch.
        metadata: Text to keep in the file.

    Raises:
        RequestError: No kernel was measured at two shares beside dense attention.
    """
    from matplotlib.figure import Figure

    found = curves(rows, base)
    panels = list(dict.fromkeys(found[list(PANEL)].itertuples(index=False, name=None)))
    if not panels:
        raise RequestError(f"nothing was measured at two shares of blocks beside {base} on full attention")
    lines = -(-len(panels) // _COLUMNS)
    figure = Figure(figsize=(8.4, 2.6 * lines + 0.4), dpi=dpi, layout="constrained")
    grid = figure.subplots(lines, min(_COLUMNS, len(panels)), squeeze=False, sharex=True, sharey=True)
    kernels, handles = list(dict.fromkeys(found["kernel"])), dict[str, Any]()
    by_panel = found.set_index(list(PANEL))
    for axes, panel in zip(grid.flat, panels, strict=False):
        _draw_panel(axes, by_panel.loc[panel], kernels, base, handles)
        axes.set_title(panel_words(panel), fontsize=_FONT + 0.5, loc="left")
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    grid[0, 0].set_ylim(0, max(found["tflops"].max(), found["full"].max()) * 1.05)
    grid[0, 0].set_xlim(0, 1.02)
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=5, frameon=False, fontsize=_FONT)
    figure.savefig(path, metadata=metadata)


def _draw_panel(axes: Axes, found: DataFrame, kernels: Sequence[str], base: str, handles: dict[str, Any]) -> None:
    label = f"as fast as {base} on full attention"
    (handles[label],) = axes.plot([0, 1], [0, found["full"].median()], color="#555b64", linestyle="--", linewidth=0.9)
    for kernel, curve in found.groupby("kernel", sort=False):
        colour, marker = look_of(str(kernel), kernels)
        style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 3.5, "linewidth": 1.2}
        (handles[printable(str(kernel))],) = axes.plot(curve["density"], curve["tflops"], **style)
    axes.set_xlabel("share of the pairs that is visible", fontsize=_FONT)
    axes.set_ylabel("TFLOP/s", fontsize=_FONT)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.tick_params(labelsize=_FONT - 0.5, labelbottom=True, labelleft=True)
    axes.grid(True, color="#e8eaee", linewidth=0.6)
