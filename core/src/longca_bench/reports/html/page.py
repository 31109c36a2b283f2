"""The page: tables of views, charts, and every case, in one HTML file that loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from longca.errors import LongCAError, RequestError
from longca.plain_text import printable
from longca_bench.reports.charts import altair, page_charts
from longca_bench.reports.comparison import Comparison, compare_runs, comparison_tables, sentences
from longca_bench.reports.mask_text import factor_words
from longca_bench.reports.runs import Run, complaints, flatten, unreached
from longca_bench.reports.table import Cell, Head, Mark, Table
from longca_bench.reports.view import tables_of
from longca_bench.reports.views import NOT_MEASURED, tables
from longca_bench.reports.winners import ranking
from longca_bench.reports.words import memory_unit, ratio_text, status_counts, three_digits, throughput_unit, tokens

if TYPE_CHECKING:
    from pandas import DataFrame

    from longca_bench.reports.rows import Rows

__all__ = ["write_html"]

#: Records up to which a page has samples, and records of a page.
MOST_WITH_SAMPLES, MOST_RECORDS = 10_000, 30_000
#: The fields that make two records of one run the same problem.
_PROBLEM = ("run_number", "device", "direction", "mask_words", "shape", "seqlen", "seed", "mask_digest")
#: Mask factors that have an option of `longca run`.
_OPTIONS = ("documents", "window", "prefix", "block", "kept", "global_tokens", "boundaries")
_TEXTS = (
    "kernel", "strategy", "placement", "placed", "mesh", "mask_words", "shape", "direction", "device", "status",
    "message", "advice", "form", "backend", "finished", "who", "run", "command", "version", "suite_words", "clocks",
)  # fmt: skip
_NUMBERS = (
    "run_number", "seqlen", "seed", "density", "tile_efficiency", "median", "speed", "slow", "fast", "low_ms",
    "high_ms", "plan_ms", "first_seconds", "mask_mib", "peak", "of_alone", "of_abreast", "hidden_share", "error",
)  # fmt: skip
_READING = {
    "Interval": "A range in brackets is a 95 % bootstrap interval. It describes the spread within a run and not the "
    "spread between runs.",
    "Tie": "Two kernels tie if the interval of the ratio of their times contains 1.",
    "Over the next": "The time of the next one over the time of the fastest one, as a geometric mean over the draws of "
    "a mask that both solved.",
    "TFLOP/s": "Floating-point operations of the visible pairs of the mask over the median time, for each rank.",
    "Performance profile": "The share of problems that a kernel solves within a factor of the fastest time. A failed "
    "case is within no factor (Dolan and Moré, Mathematical Programming 91, 2002).",
    "Suspect": "The time is not believed, so the case is never ranked.",
}


def write_html(rows: Rows, out: Path) -> Path:
    """Writes the report of rows as one file.

    Args:
        rows: Rows of records, at least one.
        out: The file.

    Returns:
        The file.

    Raises:
        MissingPackageError: The chart library is not installed.
        RequestError: There are no records, or the file cannot be written.
    """
    if not len(rows):
        raise RequestError("no record is left to report; give other conditions")
    text = _page(rows)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8", newline="\n")  # the policy has hashes of the scripts
    except OSError as error:
        raise RequestError(f"cannot write to {out}: {error.strerror}. Choose another file with --out") from None
    return out


def _page(rows: Rows) -> str:
    """The page as text. The policy allows the page's own two scripts alone."""
    from jinja2 import Environment, PackageLoader

    library = _chart_library()
    assets = files("longca_bench.reports.html") / "assets"
    script, style = ((assets / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    whole = _frame(rows)
    shown, compared = whole[_kept(whole["problem"])], _compared(rows)
    loader = PackageLoader("longca_bench.reports.html", "assets")
    environment = Environment(loader=loader, autoescape=True, finalize=_shown)
    hashes = (hashlib.sha256(text.encode()).digest() for text in (library, script))
    names = _run_names(rows.runs)
    return environment.get_template("page.html").render(
        title=f"Attention benchmark: {', '.join(names[:3])}{' and more' if len(names) > 3 else ''}",
        about=_about(rows, shown),
        notices=[*complaints(rows.runs), *unreached(rows.runs, rows.counts()), *_left_out(len(whole), len(shown))],
        sections=list(_sections(rows, whole, compared)),
        reading=_READING,
        policy=" ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashes),
        style=style,
        data=_json(_data(rows, shown, compared)),
        library=library,
        script=script,
        Mark=Mark,
    )


def _shown(value: Any) -> Any:
    """A value of the template. Text of records has no control character and no override of the writing direction."""
    return printable(" ".join(value.split())) if type(value) is str else value


def _sections(rows: Rows, frame: DataFrame, compared: Comparison | None) -> Iterator[dict[str, Any]]:
    """The sections of the page: each has an id, a title, sentences, tables and the name of its charts."""
    yield {"id": "answer", "title": "The fastest for each mask", "tables": _answers(frame)}
    yield {"id": "throughput", "title": "Throughput", "chart": "throughput"}
    yield {"id": "profile", "title": "Performance profile", "chart": "profile"}
    if frame["peak"].notna().any():
        yield {"id": "memory", "title": "Memory", "chart": "memory"}
    if compared is not None:
        names = _run_names(rows.runs)
        yield {
            "id": "compare", "title": "Two runs compared", "chart": "ratios" if compared.compared else None,
            "sentences": [f"A is {names[0]}, B is {names[1]}.", *sentences(compared)],
            "tables": comparison_tables(compared),
        }  # fmt: skip
    yield {"id": "cases", "title": "Every case"}
    yield {"id": "failures", "title": "Failed and refused", "tables": tables_of(NOT_MEASURED, rows)}
    yield {"id": "runs", "title": "Runs and environments", "tables": tables("environment", rows)}


def _compared(rows: Rows) -> Comparison | None:
    """The first run compared with the second. None without two runs that have cases in common."""
    if len(rows.runs) < 2:
        return None
    both: list[list[Any]] = [[], []]
    for number, record in zip(rows["run_number"].tolist(), rows.records(), strict=True):
        if number < 2:
            both[number].append(record)
    a, b = (Run(run.folder, tuple(some), run.environment) for run, some in zip(rows.runs, both, strict=False))
    try:
        return compare_runs(a, b, force=True)
    except RequestError:
        return None


def _frame(rows: Rows) -> DataFrame:
    """The columns of the page, one row for each record."""
    by, size = throughput_unit(rows["tflops"].max())[1], memory_unit(_highest(rows))[1]
    made = _made(rows, by, size)
    frame = rows.frame(name for name in (*_TEXTS, *_NUMBERS, "mask_digest", "samples") if name not in made)
    frame = frame.assign(**made)
    frame["ok"] = (frame["status"] == "ok") & (frame["median"] > 0)
    frame["problem"] = frame.groupby(list(_PROBLEM), sort=False, dropna=False).ngroup()
    return frame


def _made(rows: Rows, by: float, size: float) -> dict[str, Any]:
    """The columns that only the page has."""
    names = np.array(_run_names(rows.runs), dtype=object)
    kinds = [_kind(run) for run in rows.runs]
    records = rows.frame((*_COMMAND, "run_number")).to_dict("records")
    gpus = rows["gpu"].map(lambda state: _gpu(state or {}))
    lengths = rows["lengths"].map(lambda name: "" if name == "auto" else f", lengths from {name}")
    factors = rows["factors"].map(lambda given: "".join(f", {text}" for text in factor_words(given)))
    ranks = rows["world_size"].astype("float64").fillna(1)
    flops = rows["flops"].astype("float64") / 1e9 / ranks
    return {
        "run": names[rows["run_number"]],
        "mask_words": rows["pattern"] + factors + lengths,
        "shape": rows["heads"] + " heads of " + rows["head_dim"].astype(str) + ", " + rows["dtype"],
        "version": rows["distribution"] + " " + rows["distribution_version"],
        "suite_words": rows["suite"] + " " + rows["suite_version"].astype(str),
        "clocks": gpus,
        "device": rows["device"].where(ranks == 1, ranks.astype(int).astype(str) + " × " + rows["device"]),
        "command": [rerun(record, kinds[record["run_number"]]) for record in records],
        "speed": rows["tflops"] * by,
        "slow": by * flops / rows["high_ms"],
        "fast": by * flops / rows["low_ms"],
        "peak": rows["peak_bytes"].astype("float64") * size,
    }


def _highest(rows: Rows) -> float:
    return float(rows["peak_bytes"].max()) if rows["peak_bytes"].notna().any() else 0.0


def _answers(frame: DataFrame) -> list[Table]:
    """The fastest kernel or strategy for each mask, its lead over the next, and how sure that is."""
    found = []
    places = {mask: place for place, mask in enumerate(frame["mask_words"].unique())}
    ok = (
        frame[frame["ok"]].assign(place=frame["mask_words"].map(places)).sort_values(["place", "seqlen"], kind="stable")
    )
    for (device, direction), part in ok.groupby(["device", "direction"], sort=False):
        lines = [
            _answer(of, mask, shape if part["shape"].nunique() > 1 else "", seqlen)
            for (mask, shape, seqlen), of in part.groupby(["mask_words", "shape", "seqlen"], sort=False)
        ]
        heads = (
            Head("mask", left=True), Head("shape", left=True), Head("tokens"), Head("fastest", left=True),
            Head("throughput"), Head("time, ms"), Head("of one device"), Head("over the next"),
            Head("next", left=True), Head("how sure", left=True),
        )  # fmt: skip
        made = Table(heads, tuple(lines), f"{direction}, {device}")
        found.append(made.only([n for n in range(len(heads)) if any(line[n].text for line in lines)]))
    return found


def _answer(of: DataFrame, mask: str, shape: str, seqlen: int) -> tuple[Cell, ...]:
    from longca_bench.measuring.statistics import ENOUGH

    of = of.drop_duplicates(["problem", "who"], keep="last")
    measured = {
        name: dict(zip(part["problem"], part["samples"], strict=True)) for name, part in of.groupby("who", sort=False)
    }
    first, ratios = ranking(measured)
    fastest = of[of["who"] == first]
    over, then, sure = "", "", "no rival"
    if ratios:
        then, ratio = next(iter(ratios.items()))
        ends = f" ({ratio_text(ratio.low)}–{ratio_text(ratio.high)})" if ratio.is_known else ""
        over = f"{ratio_text(ratio.value)}×{ends}"
        common = measured[first].keys() & measured[then].keys()
        few = min(len(measured[name][problem]) for name in (first, then) for problem in common) < ENOUGH
        sure = "not known" if not ratio.is_known else "tie" if ratio.contains(1.0) else "few samples" if few else "sure"
    share = fastest["of_alone"].median()
    middle = fastest["median"].median() * 1e3
    texts = (mask, shape, tokens(seqlen), first, three_digits(fastest["speed"].median()), three_digits(middle))
    return tuple(map(Cell, (*texts, f"{share:.0%}" if share == share else "", over, then, sure)))


def _about(rows: Rows, shown: DataFrame) -> str:
    dates = sorted(text[:10] for text in shown["finished"] if text)
    period = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else ""
    devices = ", ".join(shown["device"].unique()[:3])
    counts = f"masks: {shown['mask_words'].nunique()} · kernels: {shown['kernel'].nunique()}"
    return printable(" · ".join(part for part in (devices, status_counts(rows["status"]), counts, period) if part))


def _kept(problems: Any) -> Any:
    """The records to keep: whole problems, in the order of the runs, while they fit."""
    sizes = problems.value_counts().sort_index().cumsum()
    return problems.map(sizes <= MOST_RECORDS)


def _left_out(records: int, shown: int) -> Iterator[str]:
    """The sentences about the parts that a page leaves out."""
    if records > MOST_WITH_SAMPLES:
        yield (
            f"The samples of single calls are left out, because the runs have {records:,} records and a page has "
            f"samples for up to {MOST_WITH_SAMPLES:,}. Medians and intervals are of all samples."
        )
    if shown < records:
        yield (
            f"{records - shown:,} records are left out of charts and cases, because a page has up to {MOST_RECORDS:,}. "
            "The problems that were measured last are left out first, each with all its kernels."
        )


def _data(rows: Rows, shown: DataFrame, compared: Comparison | None) -> dict[str, Any]:
    """The data of the page's script: texts once each, with a number for each record, and numbers."""
    unit, _ = throughput_unit(rows["tflops"].max())
    held, _ = memory_unit(_highest(rows))
    texts = {}
    for name in _TEXTS:
        codes, values = shown[name].fillna("").factorize()
        texts[name] = {"values": [printable(str(value)) for value in values], "codes": codes.tolist()}
    numbers = {name: [_short(value) for value in shown[name].astype(object)] for name in _NUMBERS}
    names = [printable(name) for name in shown["who"].unique()]
    samples = None
    if len(shown) <= MOST_WITH_SAMPLES >= len(rows):
        samples = [[_short(value * 1e3) for value in each.tolist()] for each in shown["samples"]]
    return {
        "texts": texts,
        "numbers": {**numbers, "problem": shown["problem"].tolist(), "ok": shown["ok"].astype(int).tolist()},
        "samples": samples,
        "unit": unit,
        "memory": held,
        "charts": page_charts(names, unit, held),
        "ratios": [] if compared is None else list(_ratios(compared)),
        "environments": [
            [[printable(name), printable(value)] for name, value in flatten(run.environment or {})] for run in rows.runs
        ],
    }


def _ratios(found: Comparison) -> Iterator[dict[str, Any]]:
    for pair in found.compared:
        if pair.ratio is not None:
            tip = f"{pair.a.kernel} on {pair.a.pattern}, {tokens(pair.a.seqlen)}: {ratio_text(pair.ratio.value)}"
            yield {"who": printable(pair.a.kernel), "ratio": pair.ratio.value, "tip": printable(tip)}


def _run_names(runs: Sequence[Run]) -> list[str]:
    """Names of runs: the ends of their folders, with as many parts as tell them apart."""
    parts = [run.folder.resolve().parts for run in runs]
    for depth in range(1, max(map(len, parts)) + 1):
        names = [printable("/".join(part[-depth:])) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(names, 1)]


def _kind(run: Run) -> str | None:
    device = (run.environment or {}).get("device")
    kind = device.get("kind") if isinstance(device, dict) else None
    return kind if isinstance(kind, str) else None


def _gpu(state: dict[str, Any]) -> str:
    """Clocks, power and temperature after timing, in one line."""
    units = {"sm_clock": "MHz", "memory_clock": "MHz", "power": "W", "temperature": "°C"}
    said = [f"{name.replace('_', ' ')} {state[name]:.0f} {unit}" for name, unit in units.items() if state.get(name)]
    throttle = state.get("throttle")
    return ", ".join([*said, *([f"throttled by {', '.join(map(str, throttle))}"] if throttle else [])])


#: The columns that a command is made of.
_COMMAND = (
    "pattern", "kernel", "seqlen", "heads", "head_dim", "dtype", "direction", "seed", "factors", "lengths", "strategy",
    "placement", "world_size",
)  # fmt: skip


def rerun(record: dict[str, Any], kind: str | None) -> str:
    """The `longca run` command of a record's case, for a POSIX shell.

    Args:
        record: The columns `_COMMAND` of the record.
        kind: The kind of its device, `cpu` or `cuda`. None if it is unknown.
    """
    names = ("kernel", "seqlen", "heads", "head_dim", "dtype", "direction", "seed")
    given = {name: record[name] for name in names} | {
        name: record["factors"][name] for name in _OPTIONS if name in record["factors"]
    }
    if "heads" in record["factors"]:
        given["mask_heads"] = record["factors"]["heads"]
    if record["lengths"] != "auto" and "documents" not in record["factors"] and _draws_lengths(record["pattern"]):
        given["lengths"] = record["lengths"]
    if isinstance(record["strategy"], str):
        given |= {"strategy": record["strategy"], "placement": record["placement"], "nproc": record["world_size"]}
    if kind in ("cpu", "cuda"):
        given["device"] = kind
    parts = (part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", _option(value)))
    return shlex.join(["longca", "run", record["pattern"], *parts])


def _option(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _draws_lengths(pattern: str) -> bool:
    from longca.masks.sampling import draws_lengths

    try:
        return draws_lengths(pattern)
    except LongCAError:  # the plugin of the pattern is not installed here
        return True


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
