"""The panels of a chart: throughput, failures and memory, each by sequence length; and the look of each kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from longca_bench.reports.mask_axes import FULL, PARTIAL, RULE
from longca_bench.reports.mask_text import token_count
from longca_bench.reports.text import printable
from longca_bench.reports.words import throughput_unit, word

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

__all__ = ["draw_failures", "draw_memory", "draw_throughput", "failures", "look_of", "prepare"]

#: The colours of the mask pictures, then each the one furthest in OKLab from those before it, for eyes that see all
#: colours and for eyes that tell no red from green (Machado et al., IEEE TVCG 15, 2009), on a white page.
_COLOURS = (
    PARTIAL, RULE, FULL, "#a4c025", "#7b38a3", "#7f2117", "#cfa5a4", "#b688fe", "#3a666d", "#490f27", "#0ec7de",
    "#c28e24", "#8169dd", "#120b7a",
)  # fmt: skip
_MARKERS = "osD^vPhX*<>pd"
_UNTRIED = ("unsupported", "skipped")
_FAILURES = {"oom": "s", "wrong": "X", "timeout": "d", "crashed": "*", "error": "P"}
_FRAME, _GRID, _STRIP = "#8a8f98", "#e3e6ea", "#f6f2ef"
#: The lines of the memory panel: column, dashes, and words.
_MEMORY = (("peak_bytes", "-", "peak above inputs"), ("metadata_bytes", "--", "the mask's own"))
_SPREAD = 30  # times of greatest over least throughput from which the axis is logarithmic


def look_of(kernel: str, kernels: Sequence[str]) -> tuple[str, str]:
    """A kernel's colour and marker: by its place in the run, and no two alike among the first 182."""
    index = kernels.index(kernel)
    return _COLOURS[index % len(_COLOURS)], _MARKERS[(index + index // len(_COLOURS)) % len(_MARKERS)]


def failures(chart: DataFrame) -> DataFrame:
    """The rows of failed cases, which are shown on the lower edge. A suspect case has failed if it has no time."""
    quiet = chart["status"].isin(["ok", *_UNTRIED])
    return chart[~quiet & ((chart["status"] != "suspect") | chart["tflops"].isna())]


def draw_throughput(axes: Axes, chart: DataFrame, kernels: Sequence[str]) -> None:
    """A line for each kernel, with a gap at a length that failed. A suspect time is a hollow marker beside the line."""
    known = chart["tflops"].dropna()
    name, factor = throughput_unit(known.max() if len(known) else None)
    axes.set_ylabel(name)
    tried = chart.groupby("kernel")["status"].transform(lambda status: not status.isin(_UNTRIED).all())
    for kernel, curve, style in _curves(chart[tried], kernels):
        sure = curve.where(curve["status"] == "ok")
        rates = [factor * sure["flops"] / sure[column] / 1e9 for column in ("high_ms", "low_ms")]
        heights = factor * sure["tflops"]
        reach = [abs(rate - heights).fillna(0) for rate in rates]
        style |= {"markersize": 4, "linewidth": 1.4, "label": printable(kernel).replace("$", r"\$")}
        axes.errorbar(curve["seqlen"], heights, yerr=reach, capsize=2, elinewidth=0.8, **style)
        doubted = curve[(curve["status"] == "suspect") & curve["tflops"].notna()]
        hollow = {**style, "linestyle": "none", "markerfacecolor": "white", "markeredgewidth": 1.1, "label": None}
        axes.plot(doubted["seqlen"], factor * doubted["tflops"], **hollow)
    if not len(known):
        axes.set(yticks=[], ylim=(0, 1))
        axes.text(0.5, 0.5, "nothing measured", transform=axes.transAxes, ha="center", color=_FRAME, fontsize=8)
    elif known.max() > _SPREAD * known.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(bottom=0)


def draw_failures(axes: Axes, chart: DataFrame, kernels: Sequence[str]) -> None:
    """A row for each kernel that failed somewhere. A failure has a marker and a word."""
    rows = list(_curves(failures(chart), kernels))[::-1]
    for row, (_, failed, style) in enumerate(rows):
        for seqlen, status in zip(failed["seqlen"], failed["status"], strict=True):
            look = {**style, "marker": _FAILURES.get(status, "p"), "markersize": 4.5, "linestyle": "none"}
            axes.plot([seqlen], [row], **look)
            where: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points", "va": "center_baseline"}
            axes.annotate(word(status), (seqlen, row), fontsize=5.5, color=style["color"], **where)
    axes.set(ylim=(-0.5, len(rows) - 0.5), yticks=[])
    axes.set_facecolor(_STRIP)


def draw_memory(axes: Axes, chart: DataFrame, kernels: Sequence[str]) -> None:
    """Peak memory above the inputs, and dashed the mask's own bytes."""
    for column, dashes, label in _MEMORY:
        known = chart[chart[column].fillna(0) > 0]
        for _, curve, style in _curves(known, kernels):
            sizes = curve[column].astype(float)
            axes.plot(curve["seqlen"], sizes, linestyle=dashes, markersize=3, linewidth=1.1, **style)
        if len(known):
            axes.plot([], [], color="#555b64", linestyle=dashes, linewidth=1.1, label=label)
    axes.set_yscale("log", base=2)
    axes.set_ylabel("memory")
    # Above the panel, where no line of it can pass.
    where: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.97), "ncols": len(_MEMORY)}
    axes.legend(frameon=False, fontsize=5.5, handlelength=2.2, borderpad=0.1, **where)
    axes.margins(y=0.18)
    axes.yaxis.set_major_formatter(lambda value, _: _bytes(value))


def prepare(panels: Sequence[Axes], lengths: Sequence[int], font: float) -> None:
    """The look of all panels: a quiet frame, a grid, and lengths below the lowest. At most ten lengths have numbers."""
    named = set(lengths[::-1][:: -(-len(lengths) // 10)])
    for axes in panels:
        axes.margins(x=0.06)
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [token_count(n) if n in named else "" for n in lengths])
        axes.set_xticks([], minor=True)
        axes.grid(True, which="major", color=_GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=font - 0.5, length=2.5, width=0.6, color=_FRAME)
        axes.tick_params(which="minor", length=0)
        axes.yaxis.label.set_fontsize(font)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set(color=_FRAME, linewidth=0.6)
        axes.label_outer(remove_inner_ticks=True)
    panels[-1].set_xlabel("tokens", fontsize=font, labelpad=2)


def _curves(chart: DataFrame, kernels: Sequence[str]) -> Iterator[tuple[str, DataFrame, dict[str, Any]]]:
    """Each kernel with its rows by length, and its look."""
    for kernel, curve in chart.groupby("kernel", sort=False):
        colour, marker = look_of(str(kernel), kernels)
        yield str(kernel), curve.sort_values("seqlen"), {"color": colour, "marker": marker}


def _bytes(size: float) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size:g} B"
