"""Charts as Vega-Lite, by altair: throughput, memory, performance profiles and ratios of two runs.

`draw_charts` writes a .png for each mask and direction. The HTML page has the same charts without their data, and draws
them from the records of the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.errors import MissingPackageError
from longca.masks import PATTERNS
from longca.plain_text import printable
from longca_bench.reports.mask_text import factor_words, percent
from longca_bench.reports.words import throughput_unit, word

if TYPE_CHECKING:
    from pandas import DataFrame

    from longca_bench.reports.rows import Rows

__all__ = ["chart_files", "charts", "draw_charts", "page_charts"]

#: The columns that a chart's rows have in common. The first two name its file, and the others do if they vary.
_ABOUT = ("pattern", "direction", "heads_q", "heads_kv", "head_dim", "dtype", "lengths", "seed", "words")
_NAMED, _LETTERS = 2, {"heads_q": "q", "heads_kv": "kv", "head_dim": "d", "seed": "seed"}
#: The further columns of a chart's rows.
_SHOWN = (
    "factors", "seqlen", "mask_digest", "kernel", "status", "device", "density", "flops", "tflops", "low_ms", "high_ms",
    "peak_bytes", "metadata_bytes",
)  # fmt: skip
_LONGEST = 100  # characters of a file's name
#: Eight colours after Okabe and Ito that are seen on white and on black, and seven shapes: 56 looks.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b0508a", "#c98a00", "#3fa0d8", "#7a7b80", "#8f8200")
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")
_TOKENS = (
    "datum.value >= 1048576 ? format(datum.value / 1048576, '.3~g') + ' M' "
    ": datum.value % 512 == 0 ? format(datum.value / 1024, '.4~g') + ' K' : format(datum.value, ',')"
)
_BYTES = (
    "datum.value >= 1073741824 ? format(datum.value / 1073741824, '.3~g') + ' GiB' "
    ": datum.value >= 1048576 ? format(datum.value / 1048576, '.3~g') + ' MiB' "
    ": datum.value >= 1024 ? format(datum.value / 1024, '.3~g') + ' KiB' : datum.value + ' B'"
)
_UNTRIED = ("unsupported", "skipped")


def altair() -> Any:
    """The module altair.

    Raises:
        MissingPackageError: altair or its renderer is not installed.
    """
    try:
        import altair as found
        import vl_convert  # noqa: F401
    except ImportError as error:
        install = "pip install 'longca-core[html]'"
        raise MissingPackageError(error.name or "altair", "drawing charts", install) from None
    return found


def page_charts(names: Sequence[str], unit: str, memory: str) -> dict[str, Any]:
    """The charts of the HTML page as Vega-Lite, without data. Their data is named `records`.

    Args:
        names: The kernels and strategies. Each has the same look in every chart.
        unit: The unit of throughput.
        memory: The unit of memory.
    """
    alt = altair()
    lengths, colour, shape = _lengths(alt), *_looks(alt, names)
    speed = alt.Y("speed:Q", title=unit, scale=alt.Scale(domainMin=0))
    bare = alt.Chart(alt.NamedData("records"))
    base, tip = bare.encode(color=colour, tooltip="tip:N"), {"filled": True, "size": 40, "opacity": 1}
    lines = base.mark_line(strokeWidth=1.5).encode(x=lengths, y=speed, strokeDash=alt.StrokeDash("run:N", legend=None))
    whiskers = base.mark_rule().encode(x=lengths, y="slow:Q", y2="fast:Q")
    points = base.mark_point(**tip).encode(x=lengths, y=speed, shape=shape)
    over_lengths = alt.layer(lines, whiskers, points).properties(width=270, height=180)
    at_one_length = base.mark_point(**{**tip, "size": 60}).encode(
        x=alt.X("speed:Q", title=unit, scale=alt.Scale(domainMin=0)), y=alt.Y("mask:N", sort=None, title=None),
        shape=shape,
    )  # fmt: skip
    best = base.transform_joinaggregate(best="min(median)", groupby=["problem"])
    best = best.transform_joinaggregate(asked="count()", groupby=["who"])
    ranked = best.transform_filter("datum.median > 0").transform_calculate(factor="datum.median / datum.best")
    share = ranked.transform_window(rank="row_number()", sort=[alt.SortField("factor")], groupby=["who"])
    profile = share.transform_calculate(share="datum.rank / datum.asked").mark_line(interpolate="step-after", clip=True)
    profile = profile.encode(
        x=alt.X("factor:Q", title="time over the fastest", scale=alt.Scale(type="log", domain=[1, 4], nice=False)),
        y=alt.Y("share:Q", title="share of problems", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%")),
    )
    peak = alt.Y("max(peak):Q", title=f"highest peak, {memory}", scale=alt.Scale(domainMin=0))
    peaks = base.encode(x=lengths, y=peak, tooltip=["who:N", "seqlen:Q", "max(peak):Q"])
    over_peaks = alt.layer(peaks.mark_line(), peaks.mark_point(**tip).encode(shape=shape))
    samples = bare.mark_point(filled=True, size=30, color=_COLOURS[0]).encode(
        x=alt.X("call:Q", axis=alt.Axis(format="d", tickMinStep=1)),
        y=alt.Y("ms:Q", scale=alt.Scale(zero=False)),
        tooltip=["call:Q", "ms:Q"],
    )
    ratio = alt.X("ratio:Q", title="time of A / time of B", scale=alt.Scale(type="log", nice=False))
    ratios = base.mark_point(**tip).encode(x=ratio, y=alt.Y("who:N", title=None, sort=None), shape=shape)
    one = alt.Chart(alt.InlineData([{"one": 1}])).mark_rule(strokeDash=[4, 3], color="gray").encode(x="one:Q")
    made = {
        "lengths": over_lengths.facet(facet=alt.Facet("mask:N", title=None, sort=None), columns=4),
        "masks": at_one_length.properties(width=400),
        "profile": profile.properties(width=400, height=220),
        "memory": over_peaks.properties(width=400, height=180),
        "ratios": alt.layer(one, ratios).properties(width=500),
        "samples": samples.properties(width=400, height=130),
    }
    return {name: chart.to_dict() for name, chart in made.items()}


def charts(rows: Rows) -> list[DataFrame]:
    """The rows of each chart of kernels on one device. No kernel has two at one length: the last one counts.

    Different masks of one pattern and length have charts of their own.
    """
    single = rows.where(strategy=None)
    single = single.with_column("words", single["factors"].map(lambda factors: " ".join(factor_words(factors))))
    frame = single.frame((*_ABOUT, *_SHOWN))
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
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", "-".join((*values[:_NAMED], *shape)))[:_LONGEST].strip(".-").lower()
        further = (f"{plain}-{number}" for number in range(2, len(about) + 2))
        names.append(next(name for name in (plain, *further) if name not in names))
    return [f"{name}.png" for name in names]


def draw_charts(rows: Rows, folder: Path, *, scale: float = 2.0) -> list[Path]:
    """Draws every chart of a run. A kernel has the same colour and shape in all of them.

    Args:
        rows: The records.
        folder: An existing folder for the files.
        scale: Dots of a file for each dot of a screen.

    Returns:
        The files.

    Raises:
        MissingPackageError: altair or its renderer is not installed.
    """
    names = [printable(kernel) for kernel in dict.fromkeys(rows["kernel"])]
    found = charts(rows)
    paths = [folder / name for name in chart_files(found)]
    for chart, path in zip(found, paths, strict=True):
        _chart(chart, names).save(str(path), scale_factor=scale)
    return paths


def _chart(rows: DataFrame, names: Sequence[str]) -> Any:
    """Throughput above, failures below it, memory below these, and a caption."""
    alt = altair()
    unit, by = throughput_unit(rows["tflops"].max())
    values = [
        {
            "kernel": printable(row["kernel"]), "tokens": row["seqlen"], "status": row["status"],
            "speed": _positive(row["tflops"], by) if row["status"] == "ok" else None,
            "hollow": _positive(row["tflops"], by) if row["status"] != "ok" else None,
            **{name: by * row["flops"] / row[end] / 1e9 if row["status"] == "ok" and row[end] > 0 else None
               for name, end in (("slow", "high_ms"), ("fast", "low_ms"))},
            "peak": _positive(row["peak_bytes"]), "mask": _positive(row["metadata_bytes"]),
        }
        for row in rows.astype(object).where(rows.notna(), float("nan")).to_dict("records")
    ]  # fmt: skip
    tried = {value["kernel"] for value in values if value["status"] not in _UNTRIED}
    shown = [name for name in names if name in tried]
    x, (colour, shape) = _lengths(alt, "tokens"), _looks(alt, names, "kernel", shown)

    def some(chosen: list[dict[str, Any]]) -> Any:
        return alt.Chart(alt.InlineData(chosen)).encode(x=x, color=colour)

    y = alt.Y("speed:Q", title=unit, scale=alt.Scale(domainMin=0))
    sure, suspect = ([value for value in values if value[name] is not None] for name in ("speed", "hollow"))
    points = some(sure).mark_point(filled=True, opacity=1, size=45)
    layers = [
        some(values).mark_line(invalid="break-paths-show-path-domains").encode(y=y),
        some(sure).mark_rule().encode(y="slow:Q", y2="fast:Q"),
        points.encode(y=y, shape=shape),
        some(suspect).mark_point(size=45).encode(y="hollow:Q", shape=shape),
    ]
    panels = [alt.layer(*layers).properties(width=380, height=220)]
    failed = [
        {**value, "word": word(value["status"])}
        for value in values
        if value["status"] not in ("ok", *_UNTRIED) and value["hollow"] is None
    ]
    if failed:
        rows_ = some(failed).encode(y=alt.Y("kernel:N", title=None, axis=alt.Axis(grid=False)), text="word:N")
        marks = alt.layer(rows_.mark_point(shape="square", filled=True), rows_.mark_text(align="left", dx=6))
        panels.append(marks.properties(width=380, height=alt.Step(16)))
    if any(value["peak"] or value["mask"] for value in values):
        sizes, labels = alt.Scale(type="log", base=2), alt.Axis(labelExpr=_BYTES, tickCount=5)
        lines = [
            some([value for value in values if value[name]])
            .mark_line(**look)
            .encode(y=alt.Y(f"{name}:Q", title="memory", scale=sizes, axis=labels))
            for name, look in (("peak", {"point": True}), ("mask", {"strokeDash": [4, 3]}))
        ]
        panels.append(alt.layer(*lines).properties(width=380, height=90))
    title = alt.TitleParams(_title(rows), subtitle=list(_caption(rows)), anchor="start", subtitleFontSize=9)
    return alt.vconcat(*panels, title=title).resolve_scale(x="shared", color="shared").configure_view(stroke=None)


def _positive(value: Any, by: float = 1.0) -> float | None:
    return float(value) * by if value == value and (value or 0) > 0 else None


def _title(chart: DataFrame) -> str:
    some = chart.iloc[0]
    pattern = PATTERNS.get(some["pattern"])
    words = (pattern.title if pattern else some["pattern"], *factor_words(some["factors"]), some["direction"])
    return printable(", ".join(words))


def _caption(chart: DataFrame) -> Iterator[str]:
    """The sentences of the caption: the shape, the meaning of the marks, and the kernels that are missing."""
    some = chart.iloc[0]
    dense = " to ".join(dict.fromkeys(percent(value) for value in (chart["density"].min(), chart["density"].max())))
    yield printable(f"{some['device']}; {dense} of pairs visible; seed {some['seed']}")
    yield f"{some['heads_q']} query and {some['heads_kv']} KV heads of {some['head_dim']}, {some['dtype']}"
    if (chart[["peak_bytes", "metadata_bytes"]].fillna(0) > 0).any(axis=None):
        yield "Memory: peak above inputs; dashed, the mask's own"
    if ((chart["status"] == "suspect") & chart["tflops"].notna()).any():
        yield "Hollow: suspect, above what the hardware can do"
    for status in _UNTRIED:
        if missing := dict.fromkeys(chart["kernel"][chart["status"] == status]):
            yield printable(f"{status.capitalize()}: {', '.join(missing)}")


def _lengths(alt: Any, field: str = "seqlen") -> Any:
    axis = alt.Axis(title="tokens", labelExpr=_TOKENS, grid=False, labelOverlap="greedy", tickCount=6)
    return alt.X(f"{field}:Q", scale=alt.Scale(type="log", base=2, nice=False, padding=12), axis=axis)


def _looks(alt: Any, names: Sequence[str], field: str = "who", shown: Sequence[str] | None = None) -> tuple[Any, Any]:
    """The colour and the shape of each kernel or strategy, by its place among all names."""
    chosen = list(names if shown is None else shown)
    places = [names.index(name) for name in chosen]
    legend = alt.Legend(title=None, orient="bottom", columns=4, labelLimit=300) if shown else None
    colours = alt.Scale(domain=chosen, range=[_COLOURS[place % len(_COLOURS)] for place in places])
    shapes = alt.Scale(domain=chosen, range=[_SHAPES[place % len(_SHAPES)] for place in places])
    colour = alt.Color(f"{field}:N", scale=colours, legend=legend)
    return colour, alt.Shape(f"{field}:N", scale=shapes, legend=legend)
