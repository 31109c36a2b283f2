"""Two runs compared: their cases in pairs, each with the ratio of its times and the interval of that.

A ratio is median(A) / median(B). It is above 1 if B is faster. Only cases that are `ok` on both sides have a ratio.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from longca.errors import RequestError
from longca_bench.reports.run_source import Run, complaints, flatten

if TYPE_CHECKING:
    from longca_bench.measuring.records import Record
    from longca_bench.measuring.statistics import Interval

__all__ = ["KEY", "Comparison", "Difference", "Pair", "compare_runs", "environment_differences", "verdict"]

#: The fields that make two records a pair.
KEY = (
    "kernel", "pattern", "seqlen", "lengths", "seed", "heads_q", "heads_kv", "head_dim", "dtype", "direction",
    "mask_digest", "strategy", "placement", "world_size", "mesh", "transport",
)  # fmt: skip

#: The facts that must be alike for times to be compared, by the dotted names of `environment.json`.
_MUST_MATCH = ("device.name", "packages.torch", "python", "suite", "environment.json")
#: The facts that must be alike if both runs have them.
_MUST_MATCH_IF_KNOWN = ("driver",)
#: Facts that the records tell, or that change all the time.
_LEFT_OUT = ("suite.", "gpu.")


@dataclass(frozen=True)
class Difference:
    """A fact that differs between the runs.

    Attributes:
        name: Its dotted name.
        a: Its value in A.
        b: Its value in B.
        forbids: Whether it makes times incomparable.
    """

    name: str
    a: str
    b: str
    forbids: bool


@dataclass(frozen=True)
class Pair:
    """One case, measured in both runs.

    Attributes:
        a: A's record.
        b: B's record.
        ratio: median(A) / median(B) with its interval. None unless both are `ok`.
    """

    a: Record
    b: Record
    ratio: Interval | None


@dataclass(frozen=True)
class Comparison:
    """The comparison of two runs.

    Attributes:
        pairs: Cases of both, in A's order.
        only_a: Cases of A alone.
        only_b: Cases of B alone.
        mean: Geometric mean of the ratios. None without ratios.
        differences: The facts that differ between their environments.
        complaints: Sentences about wrong and missing lines of the runs.
    """

    pairs: tuple[Pair, ...]
    only_a: tuple[Record, ...]
    only_b: tuple[Record, ...]
    mean: Interval | None
    differences: tuple[Difference, ...]
    complaints: tuple[str, ...] = ()

    @property
    def compared(self) -> list[Pair]:
        """The pairs that have a ratio."""
        return [pair for pair in self.pairs if pair.ratio is not None]

    @property
    def changed(self) -> list[Pair]:
        """The pairs whose status is not the same."""
        return [pair for pair in self.pairs if pair.a.status != pair.b.status]


def compare_runs(a: Run, b: Run, *, force: bool = False) -> Comparison:
    """Compares two runs.

    The last record of a case counts.

    Args:
        a: The run that ratios are of.
        b: The run it is held against.
        force: Whether to compare runs in spite of unlike conditions.

    Raises:
        RequestError: The environments are unlike and `force` is not given, or no case is in both runs.
    """
    differences = environment_differences(a, b)
    against = [difference for difference in differences if difference.forbids]
    if against and not force:
        told = "; ".join(f"{d.name} is {d.a} in A and {d.b} in B" for d in against)
        raise RequestError(f"the runs were not made alike: {told}. Add --force to compare them all the same")
    of_a, of_b = _by_key(a.records), _by_key(b.records)
    pairs, mean = _compared([(record, of_b[key]) for key, record in of_a.items() if key in of_b])
    if not pairs:
        raise RequestError("the runs have no case in common; compare two runs of one suite")
    return Comparison(
        pairs=pairs,
        only_a=tuple(record for key, record in of_a.items() if key not in of_b),
        only_b=tuple(record for key, record in of_b.items() if key not in of_a),
        mean=mean,
        differences=tuple(differences),
        complaints=tuple(complaints((a, b))),
    )


def compare_kernels(records: Sequence[Record], a: str, b: str) -> Comparison:
    """Compares two kernels of one run, on the cases that both were asked.

    Args:
        records: The run's records.
        a: The kernel that is A.
        b: The kernel that is B.
    """
    names = [name for name in KEY if name != "kernel"]
    sides = [_by_key([record for record in records if record.kernel == kernel], names) for kernel in (a, b)]
    pairs, mean = _compared([(record, sides[1][key]) for key, record in sides[0].items() if key in sides[1]])
    return Comparison(pairs, (), (), mean, ())


def environment_differences(a: Run, b: Run) -> list[Difference]:
    """The facts that differ between two runs. Facts that forbid comparing come first."""
    of_a, of_b = _facts(a), _facts(b)
    found = [
        Difference(name, of_a.get(name, "unknown"), of_b.get(name, "unknown"), _forbids(name, of_a, of_b))
        for name in dict.fromkeys((*of_a, *of_b))
        if of_a.get(name) != of_b.get(name)
    ]
    return sorted(found, key=lambda difference: not difference.forbids)


def verdict(ratio: Interval) -> str:
    """The verdict of an interval, in words."""
    if not ratio.is_known:
        return "too few samples"
    if ratio.contains(1.0):
        return "no difference shown"
    return "B faster" if ratio.value > 1 else "A faster"


def _facts(run: Run) -> dict[str, str]:
    facts: dict[str, str] = {"environment.json": "there" if run.environment is not None else "missing"}
    facts["suite"] = ", ".join(sorted(run.suites))
    if run.environment is None:
        facts["device.name"] = ", ".join(sorted({record.device for record in run.records}))
    found = {name: value for name, value in flatten(run.environment or {}) if not name.startswith(_LEFT_OUT)}
    return {**facts, **found}


def _forbids(name: str, of_a: dict[str, str], of_b: dict[str, str]) -> bool:
    return name in _MUST_MATCH or (name in _MUST_MATCH_IF_KNOWN and name in of_a and name in of_b)


def _by_key(records: Sequence[Record], names: Sequence[str] = KEY) -> dict[tuple[Any, ...], Record]:
    values = attrgetter(*names)
    return {values(record): record for record in records}


def _compared(couples: Sequence[tuple[Record, Record]]) -> tuple[tuple[Pair, ...], Interval | None]:
    """The pairs with their ratios, and the geometric mean of these."""
    from longca_bench.reports.intervals import mean_ratio, ratio_intervals

    comparable = [(a, b) for a, b in couples if _has_time(a) and _has_time(b)]
    samples = [(a.samples, b.samples) for a, b in comparable]
    ratios = ratio_intervals(samples)
    known = {id(a): ratio for (a, _), ratio in zip(comparable, ratios, strict=True)}
    pairs = tuple(Pair(a, b, known.get(id(a))) for a, b in couples)
    return pairs, mean_ratio(samples, ratios) if samples else None


def _has_time(record: Record) -> bool:
    return record.status == "ok" and bool(record.samples) and min(record.samples) > 0
