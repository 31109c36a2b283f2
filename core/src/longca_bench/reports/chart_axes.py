"""The panels of a chart: throughput, failures and memory, each by sequence length."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from longca_bench.reports.mask_axes import FULL, PARTIAL, RULE
from longca_bench.reports.mask_text import token_count
from longca_bench.reports.words import word

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from longca_bench.measuring.records import Record

__all__ = [
    "draw_failures", "draw_memory", "draw_throughput", "failing", "has_memory", "look_of", "prepare", "tick_lengths",
]  # fmt: skip

#: The colours of the mask pictures, then each the one furthest in OKLab from those before it, for eyes that see all
#: colours and for eyes that tell no red from green (Machado et al., IEEE TVCG 15, 2009), on a white page.
_COLOURS = (
    PARTIAL, RULE, FULL, "#a4c025", "#7b38a3", "#7f2117", "#cfa5a4", "#b688fe", "#3a666d", "#490f27", "#0ec7de",
    "#c28e24", "#8169dd", "#120b7a",
)  # fmt: skip
_MARKERS = "osD^vPhX*<>pd"
_FAILURES = {"oom": "s", "wrong": "X", "timeout": "d", "crashed": "*", "error": "P"}
_FRAME, _GRID, _STRIP = "#8a8f98", "#e3e6ea", "#f6f2ef"
#: The lines of the memory panel: field, dashes, and words.
_MEMORY: tuple[tuple[str, Literal["-", "--"], str], ...] = (
    ("peak_bytes", "-", "peak above inputs"),
    ("metadata_bytes", "--", "the mask's own"),
)
_SPREAD = 30  # times of greatest over least throughput from which the axis is logarithmic


def look_of(kernel: str, kernels: Sequence[str]) -> tuple[str, str]:
    """A kernel's colour and marker: by its place in the run, and no two alike among the first 182."""
    index = kernels.index(kernel)
    return _COLOURS[index % len(_COLOURS)], _MARKERS[(index + index // len(_COLOURS)) % len(_MARKERS)]


def failing(records: Iterable[Record]) -> list[str]:
    """The kernels with a failure, which is shown on the lower edge."""
    return list(dict.fromkeys(record.kernel for record in records if _has_failed(record)))


def has_memory(records: Iterable[Record]) -> bool:
    """Whether any bytes are known."""
    return any(record.peak_bytes or record.metadata_bytes for record in records)


def draw_throughput(axes: Axes, records: Sequence[Record], kernels: Sequence[str], unit: tuple[str, float]) -> None:
    """A line for each kernel, with a gap at a length that failed. A suspect time is a hollow marker beside the line."""
    name, factor = unit
    values = [record.tflops for record in records if record.tflops]
    logarithmic = bool(values) and max(values) > _SPREAD * min(values)
    for kernel in kernels:
        of_kernel = _by_length(records, kernel)
        colour, marker = look_of(kernel, kernels)
        sure = [record if record.status == "ok" and record.tflops else None for record in of_kernel]
        lengths = [record.seqlen for record in of_kernel]
        heights = [math.nan if record is None else (record.tflops or 0) * factor for record in sure]
        style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.4}
        axes.errorbar(lengths, heights, yerr=_error_bars(sure, factor), capsize=2, elinewidth=0.8, **style)
        doubted = [record for record in of_kernel if record.status == "suspect" and record.tflops]
        hollow = {**style, "linestyle": "none", "markerfacecolor": "white", "markeredgewidth": 1.1}
        axes.plot([r.seqlen for r in doubted], [(r.tflops or 0) * factor for r in doubted], **hollow)
    axes.set_ylabel(name)
    if logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    elif values:
        axes.set_ylim(0, max(record.tflops + _reach(record)[1] for record in records if record.tflops) * factor * 1.08)
    else:
        axes.set(yticks=[], ylim=(0, 1))
        axes.text(0.5, 0.5, "nothing measured", transform=axes.transAxes, ha="center", color=_FRAME, fontsize=8)


def draw_failures(axes: Axes, records: Sequence[Record], kernels: Sequence[str]) -> None:
    """A row for each kernel that failed somewhere, with a marker and the word for it where it did."""
    names = failing(records)
    for row, kernel in enumerate(reversed(names)):
        colour, _ = look_of(kernel, kernels)
        for record in _by_length(records, kernel):
            if _has_failed(record):
                marker = _FAILURES.get(record.status, "p")
                axes.plot([record.seqlen], [row], marker=marker, color=colour, markersize=4.5, linestyle="none")
                where: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points", "va": "center_baseline"}
                axes.annotate(word(record.status), (record.seqlen, row), fontsize=5.5, color=colour, **where)
    axes.set(ylim=(-0.5, len(names) - 0.5), yticks=[])
    axes.set_facecolor(_STRIP)


def draw_memory(axes: Axes, records: Sequence[Record], kernels: Sequence[str]) -> None:
    """Peak memory above the inputs, and dashed the mask's own bytes."""
    from matplotlib.lines import Line2D

    drawn = set()
    for kernel in kernels:
        of_kernel = _by_length(records, kernel)
        colour, marker = look_of(kernel, kernels)
        for field, dashes, _ in _MEMORY:
            sizes = [getattr(record, field) or math.nan for record in of_kernel]
            if all(map(math.isnan, sizes)):
                continue
            drawn.add(field)
            style: dict[str, Any] = {"marker": marker, "markersize": 3, "linewidth": 1.1}
            axes.plot([r.seqlen for r in of_kernel], sizes, color=colour, linestyle=dashes, **style)
    axes.set_yscale("log", base=2)
    axes.set_ylabel("memory")
    handles = [
        Line2D([], [], color="#555b64", linestyle=dashes, linewidth=1.1, label=label)
        for field, dashes, label in _MEMORY
        if field in drawn
    ]
    # Above the panel, where no line of it can pass.
    where: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.97), "ncols": len(handles) or 1}
    axes.legend(handles=handles, frameon=False, fontsize=5.5, handlelength=2.2, borderpad=0.1, **where)
    axes.margins(y=0.18)
    axes.yaxis.set_major_formatter(lambda value, _: _bytes(value))


def prepare(axes: Axes, lengths: Sequence[int], font: float, *, with_words: bool) -> None:
    """The look of all panels: a quiet frame, a grid, and room for words beside the last length."""
    axes.set_xscale("log", base=2)
    room = 0.05 * math.log2(lengths[-1] / lengths[0]) + 0.1
    axes.set_xlim(lengths[0] / 2**room, lengths[-1] * 2 ** (room * (2.6 if with_words else 1)))
    axes.grid(True, which="major", color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=font - 0.5, length=2.5, width=0.6, color=_FRAME)
    axes.tick_params(which="minor", length=0)
    axes.yaxis.label.set_fontsize(font)
    for name, spine in axes.spines.items():
        spine.set(color=_FRAME, linewidth=0.6, visible=name in ("left", "bottom"))


def tick_lengths(panels: Sequence[Axes], lengths: Sequence[int], font: float) -> None:
    """Lengths below the lowest panel alone. Only some of many lengths have a number."""
    step = -(-len(lengths) // 10)
    named = set(lengths[::-1][::step])
    for axes in panels:
        axes.set_xticks(lengths, [token_count(n) if n in named else "" for n in lengths])
        axes.set_xticks([], minor=True)
        if axes is not panels[-1]:
            axes.tick_params(labelbottom=False, bottom=False)
    panels[-1].set_xlabel("tokens", fontsize=font, labelpad=2)


def _has_failed(record: Record) -> bool:
    if record.status == "suspect":
        return record.tflops is None
    return record.status not in ("ok", "unsupported", "skipped")


def _by_length(records: Iterable[Record], kernel: str) -> list[Record]:
    return sorted((record for record in records if record.kernel == kernel), key=lambda record: record.seqlen)


def _error_bars(records: Iterable[Record | None], factor: float) -> list[list[float]]:
    """How far the interval of each median reaches below and above its throughput."""
    reaches = [_reach(record) for record in records]
    return [[reach[side] * factor for reach in reaches] for side in (0, 1)]


def _reach(record: Record | None) -> tuple[float, float]:
    """TFLOP/s below and above the median's, or 0 without an interval."""
    from longca_bench.measuring.statistics import median_interval

    if record is None or not record.samples:
        return 0.0, 0.0
    time = median_interval(record.samples)
    if not time.is_known or time.low <= 0:
        return 0.0, 0.0
    slowest, middle, fastest = (record.flops / seconds / 1e12 for seconds in (time.high, time.value, time.low))
    return middle - slowest, fastest - middle


def _bytes(size: float) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size:g} B"
