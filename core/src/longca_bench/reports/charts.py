"""Charts as Vega-Lite, by altair: throughput, memory and performance profiles.

The HTML page draws them from its own records. `draw_charts` writes throughput and memory as .png files. A line connects
the cases of one kernel and run over lengths. A time of a busy machine is a hollow point.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.manifests.installs import absent
from longca.plain_text import printable
from longca_bench.reports.words import memory_unit, throughput_unit

if TYPE_CHECKING:
    from pandas import DataFrame

    from longca_bench.reports.rows import Rows

__all__ = ["altair", "chart_frame", "chart_specs", "draw_charts", "units"]

#: Eight colours after Okabe and Ito that are seen on white and on black, and seven shapes: 56 looks.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b0508a", "#c98a00", "#3fa0d8", "#7a7b80", "#8f8200")
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")
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
        shape=rows["heads"] + " heads of " + rows["head_dim"].astype(str) + ", " + rows["dtype"],
        device=rows["device"].where(ranks == 1, ranks.astype(int).astype(str) + " × " + rows["device"]),
        speed=rows["tflops"] * by,
        slow=by * flops / rows["high_ms"],
        fast=by * flops / rows["low_ms"],
        peak=rows["peak_bytes"].astype("float64") * size,
    )
    frame["ok"] = (frame["status"] == "ok") & (frame["median"] > 0)
    return frame


def chart_specs(names: Sequence[str], speed_unit: str, memory: str, *, legend: bool = False) -> dict[str, Any]:
    """Charts as Vega-Lite without data. Their data is named `records`.

    Args:
        names: The kernels and strategies. Each has the same look in every chart.
        speed_unit: The unit of throughput.
        memory: The unit of memory.
        legend: Whether a legend has the looks.
    """
    alt = altair()
    key = alt.Legend(title=None, orient="bottom", columns=4, labelLimit=300) if legend else None
    colours, shapes = (
        alt.Scale(domain=list(names), range=[some[place % len(some)] for place in range(len(names))])
        for some in (_COLOURS, _SHAPES)
    )
    axis = alt.Axis(title="tokens", labelExpr=_TOKENS, grid=False, labelOverlap="greedy", tickCount=6)
    lengths = alt.X("seqlen:Q", scale=alt.Scale(type="log", base=2, nice=False, padding=12), axis=axis)
    bare = alt.Chart(alt.NamedData("records"))
    base = bare.encode(color=alt.Color("who:N", scale=colours, legend=key), tooltip="tip:N")
    points = base.mark_point(opacity=1, strokeWidth=1.2).encode(
        shape=alt.Shape("who:N", scale=shapes, legend=key),
        fill=alt.Fill("who:N", scale=colours, legend=None),
        fillOpacity=alt.condition("datum.busy", alt.value(0), alt.value(1)),
    )
    lines = base.mark_line(strokeWidth=1.5).encode(x=lengths, detail=["run_number:N", "shape:N"])
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


def draw_charts(rows: Rows, folder: Path) -> list[Path]:
    """Draws throughput and memory of each direction and device. A kernel has the same look in all of them.

    Raises:
        MissingPackageError: altair or its renderer is not installed.
    """
    altair()
    import vl_convert

    frame, ((unit, _), (held, _)) = chart_frame(rows), units(rows)
    for name in ("who", "mask", "run", "device"):
        frame[name] = frame[name].map(printable)
    specs = chart_specs(list(frame["who"].unique()), unit, held, legend=True)
    written = []
    devices = list(frame["device"].unique())
    for (device, direction), part in frame[frame["ok"]].groupby(["device", "direction"], sort=False):
        place = f"-{devices.index(device) + 1}" if len(devices) > 1 else ""
        kinds = {"throughput": "lengths" if part["seqlen"].nunique() > 1 else "masks", "memory": "memory"}
        for name, kind in kinds.items():
            shown = part[part["peak"].notna()] if kind == "memory" else part
            if shown.empty:
                continue
            records = shown.astype(object).where(shown.notna(), None).to_dict("records")
            spec = {**specs[kind], "datasets": {"records": records}, "title": f"{direction}, {device}"}
            path = folder / f"{name}-{direction}{place}.png"
            path.write_bytes(vl_convert.vegalite_to_png(spec, scale=2.0))
            written.append(path)
    return written
