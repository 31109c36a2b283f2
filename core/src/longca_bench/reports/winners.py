"""The fastest kernel or strategy for each mask, with ties called ties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from longca_bench.reports.words import counted

if TYPE_CHECKING:
    from longca_bench.measuring.records import Record
    from longca_bench.measuring.statistics import Interval
    from longca_bench.reports.rows import Rows

__all__ = ["Winner", "problem_key", "winners"]

#: The fields that a case has besides its kernel or strategy.
_PROBLEM = (
    "mask_digest", "seqlen", "seed", "direction", "world_size", "heads_q", "heads_kv", "head_dim", "dtype",
)  # fmt: skip
#: The samples of one kernel or strategy by problem.
_Cases = Mapping[tuple[object, ...], Sequence[float]]


@dataclass(frozen=True)
class Winner:
    """The fastest kernel or strategy for one mask, over all of its lengths, shapes and directions.

    Attributes:
        mask: The mask's pattern, with the factors that its suite gives.
        fastest: The fastest one, or several in a tie. Empty if nothing was measured.
        cases: Number of cases that these were measured on.
        second: The fastest one outside the tie, or None.
        ratio: The time of `second` over the time of the first of `fastest`, as a geometric mean over their cases.
        others: Kernels and strategies with fewer cases, each with the number of cases on which it is the fastest.
    """

    mask: str
    fastest: tuple[str, ...] = ()
    cases: int = 0
    second: str | None = None
    ratio: Interval | None = None
    others: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.fastest:
            return f"{self.mask}: nothing was measured"
        rest = "".join(f"; {name} is the fastest in {found}, and lacks others" for name, found in self.others.items())
        if len(self.fastest) > 1:
            said = f"a tie of {' and '.join(self.fastest)}"
        else:
            said = f"{self.fastest[0]} is the fastest" if self.second else f"only {self.fastest[0]} was measured"
        if self.second is not None and self.ratio is not None:
            interval = f"95 % interval {self.ratio.low:.2f} to {self.ratio.high:.2f}"
            said += f", {self.ratio.value:.2f} times as fast as {self.second} ({interval})"
        return f"{self.mask}: {said}, in {counted(self.cases)}{rest}"


def problem_key(record: Record) -> tuple[object, ...]:
    """Everything that a record's case has besides its kernel or strategy."""
    return tuple(getattr(record, name) for name in _PROBLEM)


def winners(rows: Rows) -> list[Winner]:
    """The winner for each mask and device, in the order of the rows.

    The kernels and strategies that were measured on the most cases are ranked by the geometric mean of their times. One
    ties with the first if the confidence interval of their ratio contains 1. The last record of a case counts.
    """
    frame = rows.frame(("device", "mask", "who", "status", "samples", *_PROBLEM))
    found: dict[tuple[str, str], dict[str, dict[tuple[object, ...], Sequence[float]]]] = {}
    for device, mask, who, status, samples, *problem in frame.astype(object).itertuples(index=False, name=None):
        of_mask = found.setdefault((device, mask), {})
        if status == "ok" and len(samples):
            of_mask.setdefault(who, {})[tuple(map(str, problem))] = samples
    return [_winner(mask, measured) for (_, mask), measured in found.items()]


def _winner(mask: str, measured: Mapping[str, _Cases]) -> Winner:
    if not measured:
        return Winner(mask)
    # The forward of an added pair is a case of its first kernel, so that the pair lacks a direction.
    place = _PROBLEM.index("direction")
    directions = {name: {problem[place] for problem in cases} for name, cases in measured.items()}
    every = set().union(*directions.values())
    measured = {name: cases for name, cases in measured.items() if "+" not in name or directions[name] == every}
    most = max(map(len, measured.values()))
    # Only kernels with the same cases have times that can be averaged.
    first = next(cases for cases in measured.values() if len(cases) == most)
    whole = {name: cases for name, cases in measured.items() if cases.keys() == first.keys()}
    fastest, ratios = _ranking(whole)
    tied = [name for name, ratio in ratios.items() if ratio.contains(1.0)]
    second = next((name for name in ratios if name not in tied), None)
    medians = {
        name: {problem: median(samples) for problem, samples in cases.items()} for name, cases in measured.items()
    }
    least: dict[Any, float] = {}
    for times in medians.values():
        least |= {problem: min(time, least.get(problem, time)) for problem, time in times.items()}
    counts = {
        name: sum(time == least[problem] for problem, time in times.items())
        for name, times in medians.items()
        if name not in whole
    }
    others = {name: count for name, count in counts.items() if count}
    return Winner(mask, (fastest, *tied), most, second, None if second is None else ratios[second], others)


def _ranking(measured: Mapping[str, _Cases]) -> tuple[str, dict[str, Interval]]:
    """The fastest by the geometric mean of medians, and the time of each other one over its own, the fastest first."""
    from longca_bench.reports.intervals import mean_ratio, ratio_intervals

    means = {name: fmean(log(median(samples)) for samples in found.values()) for name, found in measured.items()}
    first, *others = sorted(measured, key=means.__getitem__)
    ratios = {}
    for name in others:
        pairs = [(measured[name][problem], samples) for problem, samples in measured[first].items()]
        ratios[name] = mean_ratio(pairs, ratio_intervals(pairs))
    return first, ratios
