"""The data of the page: records as columns, texts once each, and the facts of each run.

Every text passes `printable`, so that no control character or override of the writing direction reaches the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from longca_bench.reports.html.limits import keeps_samples, kept, sentences
from longca_bench.reports.html.rerun import rerun
from longca_bench.reports.intervals import median_bounds
from longca_bench.reports.mask_text import factor_words
from longca_bench.reports.runs import Run, complaints, flatten, unreached
from longca_bench.reports.text import printable

if TYPE_CHECKING:
    from longca_bench.measuring.records import Record
    from longca_bench.reports.rows import Rows

__all__ = ["payload"]

#: The fields that make two records of one run the same problem.
_PROBLEM = (
    "pattern", "seqlen", "lengths", "seed", "heads_q", "heads_kv", "head_dim", "dtype", "direction", "mask_digest",
    "device", "world_size",
)  # fmt: skip
#: The fields that make two records of two runs the same case, on whatever device.
_CASE = tuple(name for name in _PROBLEM if name != "device")
#: The fields that tell a problem's candidates apart.
_CANDIDATE = ("kernel", "strategy", "placement", "mesh")

#: Columns of text, from a record.
_TEXTS: dict[str, Callable[[Record], str | None]] = {
    "kernel": lambda r: r.kernel,
    "strategy": lambda r: r.strategy,
    "placement": lambda r: r.placement,
    "placed": lambda r: r.placed,
    "mesh": lambda r: r.mesh,
    "mask": lambda r: _mask(r),
    "heads": lambda r: f"{r.heads_q}:{r.heads_kv}",
    "dtype": lambda r: r.dtype,
    "direction": lambda r: r.direction,
    "device": lambda r: r.device if r.world_size is None else f"{r.world_size} × {r.device}",
    "status": lambda r: r.status,
    "message": lambda r: r.message,
    "advice": lambda r: r.advice,
    "version": lambda r: f"{r.distribution} {r.distribution_version}",
    "form": lambda r: r.form,
    "backend": lambda r: r.backend,
    "suite": lambda r: f"{r.suite} {r.suite_version} ({r.suite_digest})",
    "finished": lambda r: r.finished,
    "gpu": lambda r: _gpu(r),
}
#: Columns of numbers, from a record.
_NUMBERS: dict[str, Callable[[Record], float | None]] = {
    "seqlen": lambda r: r.seqlen,
    "seed": lambda r: r.seed,
    "dim": lambda r: r.head_dim,
    "density": lambda r: r.density,
    "tiles": lambda r: r.tile_efficiency,
    "median": lambda r: r.median,
    "tflops": lambda r: r.tflops,
    "plan": lambda r: r.plan_seconds,
    "first": lambda r: r.first_seconds,
    "planBytes": lambda r: r.metadata_bytes,
    "peak": lambda r: r.peak_bytes,
    "alone": lambda r: r.alone_seconds,
    "abreast": lambda r: r.abreast_seconds,
    "hidden": lambda r: r.hidden if _says_hidden(r) else None,
    "error": lambda r: _worst(r.findings),
}


def _says_hidden(record: Record) -> bool:
    """Whether a share of hidden communication says anything. It does not if computing took longer than the whole."""
    computing = record.rank_compute_seconds
    return not (computing and record.median is not None and max(computing) > record.median)


class _Texts:
    """Texts by number, each once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str | None) -> int | None:
        """The number of a text. An empty text has none."""
        return self._numbers.setdefault(printable(text), len(self._numbers)) if text else None

    @property
    def all(self) -> list[str]:
        """The texts in the order of their numbers."""
        return list(self._numbers)


def payload(rows: Rows) -> dict[str, Any]:
    """The data of the page of rows.

    Args:
        rows: Rows of records, at least one.
    """
    runs = rows.runs
    pairs = list(zip(rows["run_number"].tolist(), rows.records(), strict=True))
    problems = [(number, *_key(record, _PROBLEM)) for number, record in pairs]
    chosen = kept(problems)
    shown = [pairs[place] for place in chosen]
    texts = _Texts()
    records = [record for _, record in shown]
    columns: dict[str, list[Any]] = {
        "run": [number for number, _ in shown],
        "problem": _numbered(problems[place] for place in chosen),
        "pair": _numbered(_key(record, (*_CASE, *_CANDIDATE)) for record in records),
        **{name: [_short(show(record)) for record in records] for name, show in _NUMBERS.items()},
        **_intervals(records),
    }
    text_columns = {name: [texts.number(show(record)) for record in records] for name, show in _TEXTS.items()}
    text_columns["command"] = [texts.number(rerun(record, _kind(runs[number]))) for number, record in shown]
    if keeps_samples(len(pairs)):
        columns["samples"] = [[_short(value) for value in record.samples] for record in records]
    names = _names(runs)
    return {
        "title": f"LongCA: {', '.join(names[:3])}{' and more' if len(names) > 3 else ''}",
        "runs": [_run(*about) for about in zip(names, runs, rows.counts(), strict=True)],
        "texts": texts.all,
        "textColumns": text_columns,
        "columns": columns,
        "leftOut": [*complaints(runs), *unreached(runs, rows.counts()), *sentences(len(pairs), len(shown))],
    }


def _intervals(records: Sequence[Record]) -> dict[str, list[Any]]:
    """The ends of the medians' intervals, and the numbers of samples."""
    low, high = median_bounds([record.samples for record in records]).T.tolist()
    return {
        "low": [None if math.isnan(end) else _short(end) for end in low],
        "high": [None if math.isnan(end) else _short(end) for end in high],
        "count": [len(record.samples) for record in records],
    }


def _run(name: str, run: Run, count: int) -> dict[str, Any]:
    facts = [*flatten(run.environment or {})]
    shown = [[printable(fact), printable(value)] for fact, value in facts if not fact.startswith("suite.")]
    return {"name": name, "folder": printable(str(run.folder)), "records": count, "facts": shown}


def _names(runs: Sequence[Run]) -> list[str]:
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


def _key(record: Record, fields: Iterable[str]) -> tuple[Hashable, ...]:
    return (*(getattr(record, name) for name in fields), _mask(record))


def _mask(record: Record) -> str:
    lengths = () if record.lengths == "auto" else (f"lengths from {record.lengths}",)
    return ", ".join((record.pattern, *factor_words(record.factors), *lengths))


def _gpu(record: Record) -> str | None:
    """Clocks, power and temperature after timing, in one line."""
    state: dict[str, Any] = {**(record.gpu or {})}
    units = {"sm_clock": "MHz", "memory_clock": "MHz", "power": "W", "temperature": "°C"}
    said = [f"{name.replace('_', ' ')} {state[name]:.0f} {unit}" for name, unit in units.items() if state.get(name)]
    throttle = state.get("throttle")
    return ", ".join([*said, *([f"throttled by {', '.join(map(str, throttle))}"] if throttle else [])]) or None


def _worst(findings: Iterable[Mapping[str, Any]]) -> float | None:
    """The largest share of its limit that an error reached."""
    shares = [f["error"] / f["limit"] for f in findings if f.get("error") is not None and f.get("limit")]
    return max(shares, default=None)


def _numbered(keys: Iterable[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _short(value: float | None) -> float | int | None:
    """A number with five significant digits; whole numbers as they are; None if it is not finite."""
    if value is None or isinstance(value, int):
        return value
    return float(f"{value:.5g}") if math.isfinite(value) else None
