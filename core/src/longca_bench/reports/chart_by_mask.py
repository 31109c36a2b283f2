"""A chart of kernels by mask: a line a mask, a point a kernel, a panel a direction. One length and one shape of heads.

Points are medians over draws. The grey bar of a mask is its limit: the speed of one kernel on full attention, in the
same run, times the mask's tile efficiency.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.errors import RequestError
from longca_bench.reports.chart_axes import look_of
from longca_bench.reports.columns import FULL_SPEED
from longca_bench.reports.text import printable
from longca_bench.reports.words import tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from longca_bench.reports.rows import Rows

__all__ = ["draw_by_mask", "points"]

_WIDTH, _LINE, _ABOVE, _BELOW, _LEFT = 8.2, 0.25, 0.75, 0.5, 1.55  # inches
_GREY, _FONT = "#d9dce1", 8.0


def points(rows: Rows) -> DataFrame:
    """Median TFLOP/s and limit by direction, mask and kernel.

    Args:
        rows: Records of one length and one shape of heads.

    Raises:
        RequestError: As in `title_of`.
    """
    title_of(rows)
    found = rows.where(status="ok", strategy=None).frame(
        ("direction", "pattern_place", "mask", "kernel", "tflops", "share_of_limit")
    )
    found["limit"] = found["tflops"] / found["share_of_limit"]
    keys = ["direction", "pattern_place", "mask", "kernel"]
    return found.groupby(keys, sort=True)[["tflops", "limit"]].median().reset_index()


def title_of(rows: Rows) -> str:
    """The length, shape and device that all records have.

    Raises:
        RequestError: Nothing was measured, or records have several lengths, shapes or devices.
    """
    about = ("seqlen", "heads", "head_dim", "dtype", "environment.device.name")
    shapes = rows.where(status="ok", strategy=None).frame(about).drop_duplicates()
    if len(shapes) != 1:
        raise RequestError(f"a chart by mask takes records of one length, shape and device; {len(shapes)} were given")
    seqlen, heads, head_dim, dtype, device = shapes.iloc[0]
    return printable(f"{device}: {tokens(seqlen)} tokens, {heads} heads of {head_dim}, {dtype}")


def draw_by_mask(rows: Rows, path: Path, *, dpi: float = 160, metadata: dict[str, str] | None = None) -> None:
    """Draws a chart of kernels by mask.

    Args:
        rows: Records of one length and one shape of heads.
        path: The file; its suffix says the format.
        dpi: Dots an inch.
        metadata: Text to keep in the file.

    Raises:
        RequestError: As in `title_of`.
    """
    from matplotlib.figure import Figure

    found = points(rows)
    masks, kernels = list(dict.fromkeys(found["mask"])), list(dict.fromkeys(rows["kernel"]))
    directions = [each for each in ("forward", "backward") if each in set(found["direction"])]
    height = _ABOVE + _LINE * len(masks) + _BELOW
    figure = Figure(figsize=(_WIDTH, height), dpi=dpi)
    wide = (_WIDTH - _LEFT - 0.15) / len(directions)
    for place, direction in enumerate(directions):
        left = (_LEFT + place * wide) / _WIDTH
        axes = figure.add_axes((left, _BELOW / height, (wide - 0.2) / _WIDTH, _LINE * len(masks) / height))
        _panel(axes, found[found["direction"] == direction], masks, kernels)
        axes.set_title(direction, fontsize=_FONT, loc="left", pad=4)
        axes.set_yticklabels([printable(mask) for mask in masks] if place == 0 else [])
    _words(figure, title_of(rows), found, kernels, height)
    figure.savefig(path, metadata=metadata)


def _panel(axes: Axes, found: DataFrame, masks: Sequence[str], kernels: Sequence[str]) -> None:
    places = {mask: place for place, mask in enumerate(masks)}
    limits = found.groupby("mask")["limit"].median().dropna()
    axes.barh([places[mask] for mask in limits.index], limits, height=0.62, color=_GREY, zorder=1)
    for kernel, of_kernel in found.groupby("kernel", sort=False):
        colour, marker = look_of(str(kernel), kernels)
        at = [places[mask] for mask in of_kernel["mask"]]
        axes.scatter(
            of_kernel["tflops"], at, s=26, color=colour, marker=marker, linewidths=0.4, edgecolors="w", zorder=3
        )
    axes.set_ylim(len(masks) - 0.45, -0.55)
    axes.set_yticks(range(len(masks)))
    axes.set_xlim(0, None)
    axes.set_xlabel("TFLOP/s", fontsize=_FONT)
    axes.tick_params(labelsize=_FONT - 0.5, length=0)
    axes.grid(axis="x", color="#e8eaee", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _words(figure: Any, title: str, found: DataFrame, kernels: Sequence[str], height: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure.text(0.012, 1 - 0.08 / height, title, fontsize=_FONT + 1.5, va="top", parse_math=False)
    handles: list[Any] = []
    for kernel in (name for name in kernels if name in set(found["kernel"])):
        colour, marker = look_of(kernel, kernels)
        handles.append(Line2D([], [], color=colour, marker=marker, linestyle="", markersize=5, label=printable(kernel)))
    limit = f"{FULL_SPEED} on full attention × the mask's tile efficiency"
    handles.append(Patch(color=_GREY, label=limit))
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.005, 1 - 0.24 / height), ncols=len(handles), frameon=False,
        fontsize=_FONT, handletextpad=0.3, columnspacing=1.2, borderaxespad=0.2,
    )  # fmt: skip
