"""Charts of a run: throughput by sequence length, one chart for each mask and direction, one line for each kernel.

A chart has throughput above, failures on its lower edge, memory below, and a caption. matplotlib is loaded when the
first chart is drawn, and nothing of its global state is touched.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from longca.masks import PATTERNS
from longca_bench.reports.chart_axes import draw_failures, draw_memory, draw_throughput, failures, prepare
from longca_bench.reports.mask_text import factor_words, percent
from longca_bench.reports.text import printable

if TYPE_CHECKING:
    from pandas import DataFrame

    from longca_bench.reports.rows import Rows

__all__ = ["chart_files", "charts", "draw_charts"]

#: The columns that a chart's rows have in common. The first two name its file, and the others do if they vary.
_ABOUT = ("pattern", "direction", "heads_q", "heads_kv", "head_dim", "dtype", "lengths", "seed", "words")
_NAMED, _LETTERS = 2, {"heads_q": "q", "heads_kv": "kv", "head_dim": "d", "seed": "seed"}
#: The further columns of a chart's rows.
_SHOWN = (
    "factors", "seqlen", "mask_digest", "kernel", "status", "device", "density", "flops", "tflops", "low_ms", "high_ms",
    "peak_bytes", "metadata_bytes",
)  # fmt: skip
_LONGEST = 100  # characters of a file's name
#: Inches: the width, the heights of the panels and of a line of failures, and of all above and below them.
_WIDTH, _MAIN, _MEMORY, _FAILURE, _AROUND = 4.6, 2.3, 0.95, 0.17, 1.4
_FONT, _COLUMNS, _WRAP = 7.0, 4, 92


def charts(rows: Rows) -> list[DataFrame]:
    """The rows of each chart of kernels on one device. No kernel has two at one length: the last one counts.

    Different masks of one pattern and length have charts of their own.
    """
    alone = rows.where(strategy=None)
    alone = alone.with_column("words", alone["factors"].map(lambda factors: " ".join(factor_words(factors))))
    frame = alone.frame((*_ABOUT, *_SHOWN))
    same = frame.groupby([*_ABOUT, "seqlen"], dropna=False)
    frame["draw"] = same["mask_digest"].transform(lambda digests: digests.factorize()[0])
    found = frame.groupby([*_ABOUT, "draw"], sort=False, dropna=False)
    return [chart.drop_duplicates(["kernel", "seqlen"], keep="last") for _, chart in found]


def chart_files(found: Sequence[DataFrame]) -> list[str]:
    """A name for each chart's file, of letters, digits, dots, dashes and underscores alone, no name twice."""
    about = [[str(chart[name].iloc[0]).replace("%", "percent") for name in _ABOUT] for chart in found]
    varying = [place for place in range(_NAMED, len(_ABOUT)) if len({values[place] for values in about}) > 1]
    names: list[str] = []
    for values in about:
        shape = (f"{_LETTERS.get(_ABOUT[place], '')}{values[place]}" for place in varying if values[place])
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", "-".join((*values[:_NAMED], *shape)))[:_LONGEST].strip(".-")
        name, number = plain, 1
        while name.lower() in names:
            number += 1
            name = f"{plain}-{number}"
        names.append(name.lower())
    return [f"{name}.png" for name in names]


def draw_charts(rows: Rows, folder: Path, *, dpi: float = 200) -> list[Path]:
    """Draws every chart of a run. A kernel has the same colour and marker in all of them.

    Args:
        rows: The records.
        folder: An existing folder for the files.
        dpi: Dots an inch.

    Returns:
        The files.
    """
    kernels = list(dict.fromkeys(rows["kernel"]))
    found = charts(rows)
    paths = [folder / name for name in chart_files(found)]
    for chart, path in zip(found, paths, strict=True):
        _draw(chart, kernels, path, dpi)
    return paths


def _draw(chart: DataFrame, kernels: Sequence[str], path: Path, dpi: float) -> None:
    from matplotlib.figure import Figure

    failed = failures(chart)["kernel"].nunique()
    draws, heights = [draw_throughput], [_MAIN]
    if failed:
        draws, heights = [*draws, draw_failures], [*heights, _FAILURE * failed]
    if (chart[["peak_bytes", "metadata_bytes"]].fillna(0) > 0).any(axis=None):
        draws, heights = [*draws, draw_memory], [*heights, _MEMORY]
    figure = Figure(figsize=(_WIDTH, sum(heights) + _AROUND), dpi=dpi, layout="constrained")
    ratios = {"height_ratios": heights}
    panels = list(figure.subplots(len(draws), sharex=True, squeeze=False, gridspec_kw=ratios).flat)
    for draw, axes in zip(draws, panels, strict=True):
        draw(axes, chart, kernels)
    prepare(panels, sorted(set(chart["seqlen"])), _FONT)
    if panels[0].get_legend_handles_labels()[0]:
        above = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": _COLUMNS, "borderaxespad": 0.2}
        panels[0].legend(frameon=False, fontsize=_FONT, handlelength=2, columnspacing=1.4, **above)
    left = {"x": 0.02, "ha": "left", "parse_math": False}
    figure.suptitle(_title(chart), fontsize=9.5, **left)
    figure.supxlabel("\n".join(_caption(chart)), fontsize=6, color="#555b64", linespacing=1.35, **left)
    figure.savefig(path)


def _title(chart: DataFrame) -> str:
    some = chart.iloc[0]
    pattern = PATTERNS.get(some["pattern"])
    words = (pattern.title if pattern else some["pattern"], *factor_words(some["factors"]), some["direction"])
    return printable(", ".join(words))


def _caption(chart: DataFrame) -> list[str]:
    text = ". ".join(_sentences(chart)) + "."
    # A number and its unit stay on one line.
    return textwrap.wrap(printable(text).replace(" %", "\N{NO-BREAK SPACE}%"), _WRAP)


def _sentences(chart: DataFrame) -> Iterator[str]:
    """The sentences of the caption: the shape, the meaning of the marks, and the kernels that are missing."""
    some = chart.iloc[0]
    dense = " to ".join(dict.fromkeys(percent(value) for value in (chart["density"].min(), chart["density"].max())))
    heads = f"{some['heads_q']} query and {some['heads_kv']} KV heads of {some['head_dim']}, {some['dtype']}"
    yield f"{some['device']}; {heads}; {dense} of pairs visible; seed {some['seed']}"
    if chart["low_ms"].notna().any():
        yield "Median, with its 95 % bootstrap interval"
    if ((chart["status"] == "suspect") & chart["tflops"].notna()).any():
        yield "Hollow: suspect, above what the hardware can do"
    for status in ("unsupported", "skipped"):
        if missing := dict.fromkeys(chart["kernel"][chart["status"] == status]):
            yield f"{status.capitalize()}: {', '.join(missing)}"
