"""One chart: throughput above, failures on its lower edge, memory below, and a caption."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.masks import PATTERNS
from longca_bench.reports.chart_axes import (
    draw_failures,
    draw_memory,
    draw_throughput,
    failing,
    has_memory,
    look_of,
    prepare,
    tick_lengths,
)
from longca_bench.reports.mask_text import factor_words, percent
from longca_bench.reports.text import printable
from longca_bench.reports.words import throughput_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from longca_bench.measuring.records import Record

__all__ = ["draw_chart"]

#: Inches: the width; heights of the panels, of a line of failures and of the caption; margins and gaps.
_WIDTH, _MAIN, _MEMORY, _FAILURE, _LINE = 4.6, 2.3, 0.95, 0.17, 0.135
_LEFT, _RIGHT, _TITLE, _LEGEND, _GAP, _TICKS = 0.66, 0.16, 0.38, 0.16, 0.14, 0.46
_FONT, _COLUMNS, _WRAP = 7.0, 4, 92


def draw_chart(records: Sequence[Record], kernels: Sequence[str], path: Path, *, dpi: float) -> None:
    """Draws one chart to a file.

    Args:
        records: Records of one mask, direction and shape. No kernel has two at one length.
        kernels: All kernels of the run. They decide on colours.
        path: Where to.
        dpi: Dots an inch.
    """
    from matplotlib.figure import Figure

    shown = [kernel for kernel in kernels if any(_is_drawn(record) for record in records if record.kernel == kernel)]
    legend = -(-len(shown) // _COLUMNS) * _LEGEND
    strip = _FAILURE * len(failing(records))
    memory = _MEMORY + _GAP if has_memory(records) else 0.0
    caption = _caption(records)
    below = _TICKS + _LINE * len(caption)
    height = _TITLE + legend + _MAIN + strip + memory + below
    figure = Figure(figsize=(_WIDTH, height), dpi=dpi)

    def panel(bottom: float, tall: float) -> Any:
        across = (_WIDTH - _LEFT - _RIGHT) / _WIDTH
        return figure.add_axes((_LEFT / _WIDTH, bottom / height, across, tall / height))

    main = panel(below + memory + strip, _MAIN)
    panels = [main]
    draw_throughput(
        main,
        records,
        kernels,
        throughput_unit(max((record.tflops for record in records if record.tflops is not None), default=None)),
    )
    if strip:
        panels.append(panel(below + memory, strip))
        draw_failures(panels[-1], records, kernels)
    if memory:
        panels.append(panel(below, _MEMORY))
        draw_memory(panels[-1], records, kernels)
    lengths = sorted({record.seqlen for record in records})
    for axes in panels:
        prepare(axes, lengths, _FONT, with_words=bool(strip))
    tick_lengths(panels, lengths, _FONT)
    _add_words(figure, _title(records[0]), caption, height)
    _add_legend(figure, shown, kernels, 1 - (_TITLE - 0.06) / height)
    figure.savefig(path)


def _is_drawn(record: Record) -> bool:
    return record.status not in ("unsupported", "skipped")


def _title(record: Record) -> str:
    pattern = PATTERNS.get(record.pattern)
    words = (pattern.title if pattern else record.pattern, *factor_words(record.factors), record.direction)
    return printable(", ".join(words))


def _caption(records: Sequence[Record]) -> list[str]:
    text = ". ".join(_sentences(records)) + "."
    # A number and its unit stay on one line.
    return textwrap.wrap(printable(text).replace(" %", "\N{NO-BREAK SPACE}%"), _WRAP)


def _sentences(records: Sequence[Record]) -> Iterator[str]:
    """The sentences of the caption: the shape, the meaning of the marks, and the kernels that are missing."""
    some = records[0]
    densities = sorted({record.density for record in records})
    dense = " to ".join(dict.fromkeys(percent(value) for value in (densities[0], densities[-1])))
    heads = f"{some.heads_q} query and {some.heads_kv} KV heads of {some.head_dim}, {some.dtype}"
    yield f"{some.device}; {heads}; {dense} of pairs visible; seed {some.seed}"
    if any(record.samples for record in records):
        yield "Median, with its 95 % bootstrap interval"
    if any(record.status == "suspect" and record.tflops is not None for record in records):
        yield "Hollow: suspect, above what the hardware can do"
    for status, words in (("unsupported", "Unsupported"), ("skipped", "Skipped")):
        missing = dict.fromkeys(record.kernel for record in records if record.status == status)
        if missing:
            yield f"{words}: {', '.join(missing)}"


def _add_words(figure: Figure, title: str, caption: Sequence[str], height: float) -> None:
    text: dict[str, Any] = {"parse_math": False, "usetex": False}
    left = _LEFT / _WIDTH
    figure.text(left, 1 - 0.1 / height, title, fontsize=9.5, ha="left", va="top", **text)
    low = (_LINE * len(caption) + 0.04) / height
    figure.text(0.1 / _WIDTH, low, "\n".join(caption), fontsize=6, va="top", color="#555b64", linespacing=1.35, **text)


def _add_legend(figure: Figure, shown: Sequence[str], kernels: Sequence[str], top: float) -> None:
    from matplotlib.lines import Line2D

    if not shown:
        return
    handles = []
    # A legend is filled column by column; its rows are to be read in order.
    for kernel in (kernel for column in range(_COLUMNS) for kernel in shown[column::_COLUMNS]):
        colour, marker = look_of(kernel, kernels)
        line = Line2D([], [], color=colour, marker=marker, markersize=4, linewidth=1.4)
        line.set_label(printable(kernel).replace("$", r"\$"))
        handles.append(line)
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(_LEFT / _WIDTH, top),
        ncols=_COLUMNS,
        frameon=False,
        fontsize=_FONT,
        handlelength=2,
        columnspacing=1.4,
        borderpad=0,
        borderaxespad=0,
    )
