"""Charts as Vega-Lite, by altair: throughput, memory and performance profiles.

The HTML page draws them from its own records, and `draw_view` draws the figures of a view as one picture. A line
connects the cases of one kernel and run over lengths. A time of a busy machine is a hollow point.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.manifests.installs import absent
from longca.plain_text import printable
from longca_bench.reports.columns import column
from longca_bench.reports.words import memory_unit, throughput_unit

if TYPE_CHECKING:
    from pandas import DataFrame

    from longca_bench.reports.rows import Rows
    from longca_bench.reports.view import View

__all__ = ["altair", "chart_frame", "chart_specs", "draw_view", "units"]

#: Eight colours after Okabe and Ito that are seen on white and on black, and seven shapes: 56 looks.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b0508a", "#c98a00", "#3fa0d8", "#7a7b80", "#8f8200")
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")
_NAMES = {"title": None, "labelLimit": 400}
_TOKENS = (
    "datum.value >= 1048576 ? format(datum.value / 1048576, '.3~g') + ' M' "
    ": datum.value % 512 == 0 ? format(datum.value / 1024, '.4~g') + ' K' : format(datum.value, ',')"
)


def altair() -> Any:
    """The module altair.

    Raises:
        MissingPackageError: altair or its renderer is not installed.
    """
    try:
        import altair as found
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise absent(error, "drawing charts") or error from None
    return found


def units(rows: Rows) -> tuple[tuple[str, float], tuple[str, float]]:
    """The units of throughput and of memory of charts, as `words` gives them."""
    return throughput_unit(rows["tflops"].max()), memory_unit(rows["peak_bytes"].astype("float64").max())


def chart_frame(rows: Rows) -> DataFrame:
    """The fields that charts are drawn from, one row for each record. `slow` and `fast` are ends of an interval."""
    (_, by), (_, size) = units(rows)
    names = ("who", "mask", "run", "run_number", "seqlen", "direction", "device", "status", "median", "busy")
    ranks = rows["world_size"].astype("float64").fillna(1)
    flops = rows["flops"].astype("float64") / 1e9 / ranks
    lengths = ", lengths from " + rows["lengths"]
    frame = rows.frame(names).assign(
        mask=rows["mask"] + lengths.where(rows["lengths"] != "auto", ""),
        shape=rows["heads"] + " heads of " + rows["head_dims"] + ", " + rows["dtype"],
        device=rows["device"].where(ranks == 1, ranks.astype(int).astype(str) + " × " + rows["device"]),
        speed=rows["tflops"] * by,
        slow=by * flops / rows["high_ms"],
        fast=by * flops / rows["low_ms"],
        peak=rows["peak_bytes"].astype("float64") * size,
    )
    frame["ok"] = (frame["status"] == "ok") & (frame["median"] > 0)
    return frame


def chart_specs(names: Sequence[str], tokens: Sequence[int], speed_unit: str, memory: str) -> dict[str, Any]:
    """Charts as Vega-Lite without data. Their data is named `records`.

    Args:
        names: The kernels and strategies. Each has the same look in every chart.
        tokens: The lengths.
        speed_unit: The unit of throughput.
        memory: The unit of memory.
    """
    alt = altair()
    bare_lines, points, lengths = _marks("who", names, values=list(tokens))  # a tip would split the lines
    base, points = bare_lines.encode(tooltip="tip:N"), points.encode(tooltip="tip:N")
    bare = alt.Chart(alt.NamedData("records"))
    lines = bare_lines.mark_line(strokeWidth=1.5).encode(x=lengths, detail=["run_number:N", "shape:N"])
    whiskers = base.mark_rule().encode(x=lengths, y="slow:Q", y2="fast:Q")

    def over_lengths(field: str, title: str, *more: Any) -> Any:
        """A panel for each mask. Lines go through the medians of draws."""
        height = alt.Y(f"{field}:Q", title=title, scale=alt.Scale(domainMin=0))
        through = lines.encode(y=alt.Y(f"median({field}):Q", title=title))
        layers = alt.layer(through, *more, points.encode(x=lengths, y=height)).properties(width=270, height=180)
        return layers.facet(facet=alt.Facet("mask:N", title=None, sort=None), columns=4)

    at_one_length = points.encode(
        x=alt.X("speed:Q", title=speed_unit, scale=alt.Scale(domainMin=0)), y=alt.Y("mask:N", sort=None, title=None)
    )
    best = base.transform_joinaggregate(best="min(median)", groupby=["problem"])
    best = best.transform_joinaggregate(asked="count()", groupby=["who"])
    ranked = best.transform_filter("datum.median > 0").transform_calculate(factor="datum.median / datum.best")
    share = ranked.transform_window(rank="row_number()", sort=[alt.SortField("factor")], groupby=["who"])
    profile = share.transform_calculate(share="datum.rank / datum.asked").mark_line(interpolate="step-after", clip=True)
    profile = profile.encode(
        x=alt.X("factor:Q", title="time over the fastest", scale=alt.Scale(type="log", domain=[1, 4], nice=False)),
        y=alt.Y("share:Q", title="share of problems", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%")),
    )
    samples = bare.mark_point(filled=True, size=30, color=_COLOURS[0]).encode(
        x=alt.X("call:Q", axis=alt.Axis(format="d", tickMinStep=1)),
        y=alt.Y("ms:Q", scale=alt.Scale(zero=False)),
        tooltip=["call:Q", "ms:Q"],
    )
    made = {
        "lengths": over_lengths("speed", speed_unit, whiskers),
        "masks": at_one_length.properties(width=400),
        "profile": profile.properties(width=400, height=220),
        "memory": over_lengths("peak", f"peak, {memory}"),
        "samples": samples.properties(width=400, height=130),
    }
    return {name: chart.to_dict() for name, chart in made.items()}


def draw_view(view: View, rows: Rows, path: Path) -> list[Path]:
    """Draws the figures of a view as one .png, .svg or .pdf file. Nothing is drawn if no case has a time.

    Raises:
        MissingPackageError: altair or its renderer is not installed.
    """
    altair()
    import vl_convert

    shown = rows.where(**view.where).where(lambda each: each[view.figure].notna(), status="ok")
    if not len(shown):
        return []
    spec, suffix = _picture(view, shown), path.suffix.removeprefix(".")
    drawn = getattr(vl_convert, f"vegalite_to_{suffix}")(spec, **({"scale": 2.0} if suffix == "png" else {}))
    path.write_bytes(drawn.encode() if isinstance(drawn, str) else drawn)
    return [path]


def _picture(view: View, rows: Rows) -> dict[str, Any]:
    """Panels for the tables of a view with a point for each cell, or over lengths if there are several."""
    alt = altair()
    figure, is_long = column(view.figure), rows["seqlen"].nunique() > 1
    unit, by = throughput_unit(rows["tflops"].max()) if figure.name == "tflops" else (figure.head or figure.name, 1.0)
    texts = {
        name: rows[name].map(column(name).format).map(printable) for name in (*view.tables, *view.keys, *view.across)
    }
    parts = [part for part in view.title.split(", ") if part and not (is_long and "{seqlen}" in part)]
    titles = [
        [part.format(**{name: texts[name][place] for name in view.tables}) for part in parts] for place in rows.index
    ]
    common = [part for part in titles[0] if all(part in each for each in titles)]

    def words(names: Sequence[str]) -> list[str]:
        kept = [texts[name] for name in names if not (is_long and name == "seqlen")]
        return [" ".join(each) for each in zip(*kept, strict=True)] or [""] * len(rows)

    panel = [", ".join(part for part in each if part not in common) for each in titles]
    label = words([*view.rows, *(name for name in view.varying if rows[name].nunique() > 1)])
    series = words(view.across)
    if is_long and any(series):
        panel = [", ".join(filter(None, each)) for each in zip(panel, label, strict=True)]
        label = series
    frame = rows.frame(("seqlen", "run_number", *view.sort)).assign(panel=panel, label=label)
    frame = frame.assign(series=series if any(series) else label, value=rows[figure.name] * by, busy=rows["busy"] != "")
    frame = frame.sort_values(list(view.sort), kind="stable") if view.sort else frame
    cell = ["panel", "label", "series", *(("seqlen", "run_number") if is_long else ())]
    frame = frame.groupby(cell, sort=False, as_index=False).agg({"value": "median", "busy": "max"})
    legend = alt.Legend(title=None, orient="bottom", columns=4, labelLimit=300, symbolLimit=0)
    names, panels = list(frame["series"].unique()), list(frame["panel"].unique())
    ticks = {"values": sorted(frame["seqlen"].unique().tolist())} if is_long else {}
    base, points, lengths = _marks("series", names, legend if is_long or any(series) else None, **ticks)
    if is_long:
        height = alt.Y("value:Q", title=unit)
        lines = base.mark_line(strokeWidth=1.5).encode(x=lengths, y=height, detail="run_number:N")
        layers = alt.layer(lines, points.encode(x=lengths, y=height)).properties(width=270, height=180)
        chart = layers.facet(facet=alt.Facet("panel:N", title=None, sort=panels), columns=4)
    else:
        dots = points.encode(x=alt.X("value:Q", title=unit), y=alt.Y("label:N", sort=None, axis=_NAMES))
        dots = dots.properties(width=400)
        each = [dots.transform_filter(alt.datum.panel == name).properties(title=name) for name in panels]
        chart = alt.concat(*each, columns=2)
    busy = ["hollow: the machine was busy"] if frame["busy"].any() else []
    devices = printable(", ".join(rows["device"].unique()))
    spec = chart.properties(title=alt.Title(", ".join([*common, devices]), subtitle=busy)).to_dict()
    return {**spec, "datasets": {"records": frame.astype(object).to_dict("records")}}


def _marks(field: str, names: Sequence[str], legend: Any = None, **ticks: Any) -> tuple[Any, Any, Any]:
    """A chart without marks, one with points, and an axis of lengths. Each name has the same look in every chart."""
    alt = altair()
    colours, shapes = (
        alt.Scale(domain=list(names), range=[some[place % len(some)] for place in range(len(names))])
        for some in (_COLOURS, _SHAPES)
    )
    base = alt.Chart(alt.NamedData("records")).encode(color=alt.Color(f"{field}:N", scale=colours, legend=legend))
    points = base.mark_point(opacity=1, strokeWidth=1.2).encode(
        shape=alt.Shape(f"{field}:N", scale=shapes, legend=legend),
        fill=alt.Fill(f"{field}:N", scale=colours, legend=None),
        fillOpacity=alt.condition("datum.busy", alt.value(0), alt.value(1)),
    )
    axis = alt.Axis(title="tokens", labelExpr=_TOKENS, grid=False, labelOverlap="greedy", **{"tickCount": 6, **ticks})
    return base, points, alt.X("seqlen:Q", scale=alt.Scale(type="log", base=2, nice=False, padding=12), axis=axis)
