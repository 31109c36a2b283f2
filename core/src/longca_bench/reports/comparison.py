"""Two runs compared: their cases in pairs, each with the ratio of its times and the interval of that.

A ratio is median(A) / median(B). It is above 1 if B is faster. Only cases that are `ok` on both sides have a ratio.
A ratio has no verdict if the machine was busy on a side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from longca.errors import RequestError
from longca_bench.reports.rows import Rows
from longca_bench.reports.runs import Run, complaints, flatten
from longca_bench.reports.table import Table
from longca_bench.reports.terminal import print_tables
from longca_bench.reports.text import printable
from longca_bench.reports.view import Value, View, tables_of
from longca_bench.reports.words import counted, mask_name, ratio_text, shared_by, three_digits, tokens

if TYPE_CHECKING:
    from rich.console import Console

    from longca_bench.measuring.records import Record
    from longca_bench.measuring.statistics import Interval

__all__ = [
    "Comparison",
    "compare_kernels",
    "compare_runs",
    "comparison_json",
    "comparison_tables",
    "print_comparison",
    "sentences",
    "verdict",
]

#: The fields that make two records a pair.
KEY = (
    "kernel", "pattern", "seqlen", "lengths", "seed", "heads_q", "heads_kv", "head_dim", "head_dim_v", "dtype",
    "direction", "softcap", "sinks", "mask_digest", "strategy", "placement", "world_size", "mesh", "transport",
)  # fmt: skip
#: The facts that must be alike for times to be compared, by the dotted names of `environment.json`; `driver` if known.
MUST_MATCH = ("device.name", "packages.torch", "python", "suite", "environment.json")
#: Facts that the records tell, or that change all the time.
_LEFT_OUT = ("suite.", "gpu.")
_DIFFERS = "{name} is {a} in A and {b} in B"
_MOST_LISTED = 20  # cases that a list names before it only counts
_VIEW = View(
    tables=("who", "direction"),
    title="{who}, {direction}",
    sort=("seqlen",),
    rows=("mask", "seqlen"),
    varying=("heads", "head_dims", "dtype", "seed"),
    apart=("case",),
    values=tuple(Value(name, "first") for name in ("a_ms", "b_ms", "ratio", "interval", "verdict")),
)


@dataclass(frozen=True)
class Pair:
    """One case, measured in both runs. The ratio is None unless both are `ok`."""

    a: Record
    b: Record
    ratio: Interval | None

    @property
    def busy(self) -> str:
        """The sides that were timed on a busy machine. Empty without one."""
        return " and ".join(side for side, record in (("A", self.a), ("B", self.b)) if record.busy)

    @property
    def verdict(self) -> str:
        """The verdict on the ratio, or the sides that forbid one. Empty without a ratio."""
        if self.ratio is None:
            return ""
        return f"busy in {self.busy}" if self.busy else verdict(self.ratio)


@dataclass(frozen=True)
class Comparison:
    """Two runs compared.

    Attributes:
        pairs: The cases of both runs.
        mean: Geometric mean of the ratios of a quiet machine. None without one.
        only_a: Cases of A alone.
        only_b: Cases of B alone.
        differences: The facts that differ between their environments: a name, the values in A and B, and whether it
            forbids to compare times. None for kernels of one run.
        complaints: Sentences about wrong lines of the runs.
    """

    pairs: tuple[Pair, ...]
    mean: Interval | None
    only_a: tuple[Record, ...] = ()
    only_b: tuple[Record, ...] = ()
    differences: tuple[dict[str, Any], ...] | None = None
    complaints: tuple[str, ...] = ()

    @property
    def compared(self) -> list[Pair]:
        """The pairs that have a ratio."""
        return [pair for pair in self.pairs if pair.ratio is not None]


def compare_runs(a: Run, b: Run, *, force: bool = False) -> Comparison:
    """Compares two runs. The last record of a case counts.

    Raises:
        RequestError: The environments are unlike and `force` is not given, or no case is in both runs.
    """
    differences = environment_differences(a, b)
    against = [_DIFFERS.format_map(difference) for difference in differences if difference["forbids"]]
    if against and not force:
        why = "; ".join(against)
        raise RequestError(f"the runs were not made alike: {why}. Add --force to compare them all the same")
    of_a, of_b = _by_key(a.records, KEY), _by_key(b.records, KEY)
    if not of_a.keys() & of_b.keys():
        raise RequestError("the runs have no case in common; compare two runs of one suite")
    return Comparison(
        *_compared(of_a, of_b),
        only_a=tuple(record for key, record in of_a.items() if key not in of_b),
        only_b=tuple(record for key, record in of_b.items() if key not in of_a),
        differences=tuple(differences),
        complaints=tuple(complaints((a, b))),
    )


def compare_kernels(records: Sequence[Record], a: str, b: str) -> Comparison:
    """Compares two kernels of one run, on the cases that both were asked."""
    sides = [_by_key([record for record in records if record.kernel == kernel], KEY[1:]) for kernel in (a, b)]
    return Comparison(*_compared(*sides))


def environment_differences(a: Run, b: Run) -> list[dict[str, Any]]:
    """The facts that differ between two runs. Facts that forbid comparing come first."""
    of_a, of_b = _facts(a), _facts(b)
    found = []
    for name in dict.fromkeys((*of_a, *of_b)):
        if of_a.get(name) != of_b.get(name):
            forbids = name in MUST_MATCH or (name == "driver" and name in of_a and name in of_b)
            values = {side: facts.get(name, "unknown") for side, facts in (("a", of_a), ("b", of_b))}
            found.append({"name": name, **values, "forbids": forbids})
    return sorted(found, key=lambda difference: not difference["forbids"])


def verdict(ratio: Interval) -> str:
    """The verdict of an interval, in words."""
    if not ratio.is_known:
        return "too few samples"
    if ratio.contains(1.0):
        return "no difference shown"
    return "B faster" if ratio.value > 1 else "A faster"


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Prints the ratio of each pair, the cases without a ratio, and the mean of all ratios."""
    print_tables(console, comparison_tables(comparison))
    for line in sentences(comparison):
        console.print(printable(line), markup=False, soft_wrap=True)


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain data."""
    return {
        "ratio": "median(A) / median(B): above 1, B is faster",
        "geometric_mean": _interval_json(comparison.mean),
        "pairs": [_pair_json(pair) for pair in comparison.pairs],
        "only_a": list(map(_about, comparison.only_a)),
        "only_b": list(map(_about, comparison.only_b)),
        "differences": list(comparison.differences or ()),
        "complaints": list(comparison.complaints),
    }


def _facts(run: Run) -> dict[str, str]:
    suites = {f"{each.suite} {each.suite_version} ({each.suite_digest})" for each in run.records}
    facts = {"environment.json": "missing" if run.environment is None else "there", "suite": ", ".join(sorted(suites))}
    if run.environment is None:
        facts["device.name"] = ", ".join(sorted({record.device for record in run.records}))
    return facts | {name: text for name, text in flatten(run.environment or {}) if not name.startswith(_LEFT_OUT)}


def _by_key(records: Sequence[Record], names: Sequence[str]) -> dict[Any, Record]:
    values = attrgetter(*names)
    return {values(record): record for record in records}


def _compared(of_a: dict[Any, Record], of_b: dict[Any, Record]) -> tuple[tuple[Pair, ...], Interval | None]:
    """The pairs with their ratios, and the geometric mean of these."""
    from longca_bench.reports.intervals import mean_ratio, ratio_intervals

    couples = [(record, of_b[key]) for key, record in of_a.items() if key in of_b]
    comparable = [(a, b) for a, b in couples if _has_time(a) and _has_time(b)]
    samples = [(a.samples, b.samples) for a, b in comparable]
    ratios = ratio_intervals(samples)
    known = {id(a): ratio for (a, _), ratio in zip(comparable, ratios, strict=True)}
    pairs = tuple(Pair(a, b, known.get(id(a))) for a, b in couples)
    quiet = [pair for pair in pairs if pair.ratio is not None and not pair.busy]
    sides = [(pair.a.samples, pair.b.samples) for pair in quiet]
    return pairs, mean_ratio(sides, [pair.ratio for pair in quiet if pair.ratio]) if quiet else None


def _has_time(record: Record) -> bool:
    return record.status == "ok" and bool(record.samples) and min(record.samples) > 0


def comparison_tables(comparison: Comparison) -> list[Table]:
    """The ratio of each pair with its interval, a table for each kernel and direction."""
    pairs = [(pair, pair.ratio) for pair in comparison.pairs if pair.ratio is not None]
    if not pairs:
        return []
    rows = Rows.of(pair.a for pair, _ in pairs).with_columns(
        b_ms=[f"{three_digits(1e3 * (pair.b.median or 0.0))}{'~' * bool(pair.b.busy)}" for pair, _ in pairs],
        ratio=[ratio.value for _, ratio in pairs],
        interval=[_ends(ratio) for _, ratio in pairs],
        verdict=[pair.verdict for pair, _ in pairs],
    )
    return tables_of(_VIEW, rows)


def _ends(interval: Interval) -> str:
    return f"{ratio_text(interval.low)}–{ratio_text(interval.high)}" if interval.is_known else "unknown"


def sentences(comparison: Comparison) -> Iterator[str]:
    """The sentences below the tables: the cases without a ratio. The last two are what is faster, and what differs."""
    changed = [pair for pair in comparison.pairs if pair.a.status != pair.b.status]
    lists = {
        "Other status": [f"{_case(p.a)}: {p.a.status} in A, {p.b.status} in B" for p in changed],
        "In A alone": [f"{_case(record)}: {record.status}" for record in comparison.only_a],
        "In B alone": [f"{_case(record)}: {record.status}" for record in comparison.only_b],
    }
    for title, lines in lists.items():
        if lines:
            yield f"{title}, {counted(len(lines))}:"
            yield from (f"  {line}" for line in lines[:_MOST_LISTED])
        if len(lines) > _MOST_LISTED:
            yield f"  and {len(lines) - _MOST_LISTED} more; --json lists them all"
    neither = len(comparison.pairs) - len(comparison.compared) - len(changed)
    if neither:
        yield f"{counted(neither)} measured in neither run."
    yield _answer(comparison)
    if comparison.differences is not None:
        differs = "; ".join(map(_DIFFERS.format_map, comparison.differences))
        yield f"Unlike in the environments: {differs}" if differs else "The environments are alike."


def _answer(comparison: Comparison) -> str:
    """A sentence that says which side is faster by how much, over how many cases, and which cases have no verdict."""
    mean, busy = comparison.mean, [pair for pair in comparison.compared if pair.busy]
    said = []
    if mean is not None:
        shown = verdict(mean)
        factor, claim = max(mean.value, 1 / mean.value), f"{shown[0].upper()}{shown[1:]}"
        if "faster" in shown:
            claim = f"{shown[0]} is {ratio_text(factor)} times as fast as {'AB'[shown[0] == 'A']}"
        counts = Counter(pair.verdict for pair in comparison.compared if not pair.busy)
        each = ", ".join(f"{name} in {count}" for name, count in counts.most_common())
        interval = f"A/B is {ratio_text(mean.value)}, 95 % interval {_ends(mean)}"
        said.append(f"{claim}, over {counted(counts.total())} ({each}): {interval}.")
    if busy:
        first = busy[0]
        why = f"the machine was busy in {first.busy} ({first.a.busy or first.b.busy})"
        said.append(f"No verdict on {counted(len(busy))}, such as {_case(first.a)}: {why}.")
    return " ".join(said) or "No case was measured in both runs: nothing to compare."


def _case(record: Record) -> str:
    mask = mask_name(record.pattern, record.factors)
    whose = shared_by(record.kernel, record.strategy, record.placement, record.mesh, record.transport)
    words = (whose, mask, tokens(record.seqlen), record.direction, record.dtype)
    shape = f"{record.heads_q}:{record.heads_kv} heads of {record.dims_text}, seed {record.seed}"
    shape += (f", soft cap {record.softcap:g}" if record.softcap else "") + ", sinks" * record.sinks
    return f"{' '.join(words)}, {shape}"


def _interval_json(interval: Interval | None) -> dict[str, Any] | None:
    """JSON has no infinity. Null stands for an unknown end."""
    if interval is None:
        return None
    low, high = (interval.low, interval.high) if interval.is_known else (None, None)
    return {"value": interval.value, "low": low, "high": high, "verdict": verdict(interval)}


def _about(record: Record) -> dict[str, Any]:
    return {**{name: getattr(record, name) for name in KEY}, "factors": record.factors, "status": record.status}


def _pair_json(pair: Pair) -> dict[str, Any]:
    sides = {
        side: {"status": record.status, "median": record.median, "samples": len(record.samples), "busy": record.busy}
        for side, record in (("a", pair.a), ("b", pair.b))
    }
    about = {name: value for name, value in _about(pair.a).items() if name != "status"}
    ratio = _interval_json(pair.ratio)
    return {**about, **sides, "ratio": ratio and {**ratio, "verdict": pair.verdict}}
