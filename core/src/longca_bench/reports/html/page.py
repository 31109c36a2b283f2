"""The page: tables of views, charts, and every case, in one HTML file that loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.errors import RequestError
from longca.plain_text import printable
from longca_bench.reports.charts import altair, chart_frame, chart_specs, units
from longca_bench.reports.runs import complaints, flatten
from longca_bench.reports.table import Mark
from longca_bench.reports.views import tables
from longca_bench.reports.winners import winners
from longca_bench.reports.words import status_counts

if TYPE_CHECKING:
    from pandas import DataFrame

    from longca_bench.reports.rows import Rows

__all__ = ["write_html"]

#: The fields that make two records of one run the same problem.
_PROBLEM = ("run_number", "device", "direction", "mask", "shape", "seqlen", "seed", "mask_digest")
_TEXTS = (
    "kernel", "strategy", "placement", "placed", "mesh", "mask", "shape", "direction", "device", "status",
    "message", "advice", "form", "backend", "finished", "who", "run", "version", "suite_words", "busy",
)  # fmt: skip
_NUMBERS = (
    "run_number", "seqlen", "seed", "density", "tile_efficiency", "median", "speed", "slow", "fast", "low_ms",
    "high_ms", "plan_ms", "first_seconds", "mask_mib", "peak", "of_alone", "of_abreast", "hidden_share", "error",
)  # fmt: skip
_READING = {
    "Interval": "A range in brackets is a 95 % bootstrap interval. It describes the spread within a run and not the "
    "spread between runs.",
    "Tie": "Two kernels tie if the interval of the ratio of their times contains 1.",
    "Times as fast": "The time of the next one over the time of the fastest one, as a geometric mean over the cases of "
    "a mask.",
    "TFLOP/s": "Floating-point operations of the visible pairs of the mask over the median time, for each rank.",
    "Performance profile": "The share of problems that a kernel solves within a factor of the fastest time. A failed "
    "case is within no factor (Dolan and Moré, Mathematical Programming 91, 2002).",
    "Suspect": "The time is not believed, so the case is never ranked.",
    "~": "The machine was busy while the case was timed. The time is shown, as a hollow point in charts, and names no "
    "winner.",
    "Fastest": "One is named the fastest only among those that one run measured on the same draws of a mask.",
}


def write_html(rows: Rows, out: Path) -> Path:
    """Writes the report of rows as one file.

    Raises:
        MissingPackageError: The chart library is not installed.
        RequestError: There are no records.
    """
    if not len(rows):
        raise RequestError("no record is left to report; give other conditions")
    out.write_text(_page(rows), encoding="utf-8", newline="\n")  # the policy has hashes of the scripts
    return out


def _page(rows: Rows) -> str:
    """The page as text. The policy allows the page's own two scripts alone."""
    from jinja2 import Environment, PackageLoader

    library = _chart_library()
    assets = files("longca_bench.reports.html") / "assets"
    script, style = ((assets / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    frame = _frame(rows)
    loader = PackageLoader("longca_bench.reports.html", "assets")
    environment = Environment(loader=loader, autoescape=True, finalize=_shown)
    hashes = (hashlib.sha256(text.encode()).digest() for text in (library, script))
    names = list(frame["run"].unique())
    return environment.get_template("page.html").render(
        title=f"Attention benchmark: {', '.join(names[:3])}{' and more' if len(names) > 3 else ''}",
        about=_about(rows, frame),
        notices=[*complaints(rows.runs), *rows.disturbed(), *rows.unreached()],
        sections=list(_sections(rows, frame)),
        reading=_READING,
        policy=" ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashes),
        style=style,
        data=_json(_data(rows, frame)),
        library=library,
        script=script,
        Mark=Mark,
    )


def _shown(value: Any) -> Any:
    """A value of the template. Text of records has no control character and no override of the writing direction."""
    return printable(" ".join(value.split())) if type(value) is str else value


def _sections(rows: Rows, frame: DataFrame) -> Iterator[dict[str, Any]]:
    """The sections of the page: each has an id, a title, sentences, tables and the name of its charts."""
    answers = [str(each) for each in winners(rows)]
    found = [*tables("results", rows), *tables("strategies", rows)]
    yield {"id": "answer", "title": "The fastest for each mask", "sentences": answers, "tables": found}
    yield {"id": "throughput", "title": "Throughput", "chart": "throughput"}
    yield {"id": "profile", "title": "Performance profile", "chart": "profile"}
    if frame["peak"].notna().any():
        yield {"id": "memory", "title": "Memory", "chart": "memory"}
    yield {"id": "cases", "title": "Every case"}
    yield {"id": "failures", "title": "Failed and refused", "tables": tables("not-measured", rows)}
    yield {"id": "runs", "title": "Runs and environments", "tables": tables("environment", rows)}


def _frame(rows: Rows) -> DataFrame:
    """The columns of the page, one row for each record."""
    frame = chart_frame(rows)
    frame["version"] = rows["distribution"] + " " + rows["distribution_version"]
    frame["suite_words"] = rows["suite"] + " " + rows["suite_version"].astype(str)
    for name in (*_TEXTS, *_NUMBERS, "mask_digest", "samples"):
        frame[name] = frame[name] if name in frame else rows[name]
    if frame["run"].nunique() < frame["run_number"].nunique():  # folders of one name
        frame["run"] = frame["run_number"].map([printable(str(run.folder)) for run in rows.runs].__getitem__)
    problems = frame.groupby(list(_PROBLEM), sort=False, dropna=False)
    frame["problem"] = problems.ngroup()
    quiet = problems["busy"].transform("max") == ""
    frame["ranked"] = quiet & (problems["who"].transform("nunique") > 1)
    times = frame["median"].where(frame["ok"]).groupby(frame["problem"])
    frame["best"] = quiet & (times.transform("count") > 1) & (frame["median"] == times.transform("min"))
    return frame


def _about(rows: Rows, frame: DataFrame) -> str:
    dates = sorted(text[:10] for text in frame["finished"] if text)
    period = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else ""
    devices = ", ".join(frame["device"].unique()[:3])
    counts = f"masks: {frame['mask'].nunique()} · kernels: {frame['kernel'].nunique()}"
    return printable(" · ".join(part for part in (devices, status_counts(rows["status"]), counts, period) if part))


def _data(rows: Rows, frame: DataFrame) -> dict[str, Any]:
    """The data of the page's script: texts once each, with a number for each record, and numbers."""
    (unit, _), (held, _) = units(rows)
    texts = {}
    for name in _TEXTS:
        codes, values = frame[name].fillna("").factorize()
        texts[name] = {"values": [printable(str(value)) for value in values], "codes": codes.tolist()}
    numbers = {name: [_short(value) for value in frame[name].astype(object)] for name in _NUMBERS}
    return {
        "texts": texts,
        "numbers": numbers | {name: frame[name].astype(int).tolist() for name in ("problem", "ok", "ranked", "best")},
        "samples": [[_short(value * 1e3) for value in each.tolist()] for each in frame["samples"]],
        "unit": unit,
        "memory": held,
        "charts": chart_specs(
            [printable(name) for name in frame["who"].unique()], sorted(frame["seqlen"].unique().tolist()), unit, held
        ),
        "environments": [
            [[printable(name), printable(value)] for name, value in flatten(run.environment or {})] for run in rows.runs
        ],
    }


@cache
def _chart_library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script."""
    altair()
    import vl_convert

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _json(data: dict[str, Any]) -> str:
    """JSON that no HTML parser takes for markup."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _short(value: Any) -> float | int | None:
    """A number with five significant digits; whole numbers as they are; None if it is missing."""
    if value is None or value != value or (isinstance(value, float) and not math.isfinite(value)):
        return None
    value = value.item() if hasattr(value, "item") else value
    return value if isinstance(value, int) else float(f"{value:.5g}")
