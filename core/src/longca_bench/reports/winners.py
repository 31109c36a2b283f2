"""The fastest kernel or strategy for each mask, with ties called ties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from longca_bench.measuring.status import Status
from longca_bench.reports.words import counted, mask_name, shared_by

if TYPE_CHECKING:
    from longca_bench.measuring.records import Record
    from longca_bench.measuring.statistics import Interval

__all__ = ["Winner", "problem_key", "ranking", "winners"]

#: The measured cases of one kernel or strategy, by everything else that a case has.
_Cases = Mapping[tuple[object, ...], "Record"]
Samples = Sequence[float]


@dataclass(frozen=True)
class Winner:
    """The fastest kernel or strategy for one mask, over all of its lengths, shapes and directions.

    Attributes:
        device: The device.
        mask: The mask's pattern, with the factors that its suite gives.
        fastest: The fastest one, or several in a tie. Empty if nothing was measured.
        cases: Number of cases that these were measured on.
        second: The fastest one outside the tie, or None.
        ratio: The time of `second` over the time of the first of `fastest`, as a geometric mean over their cases.
        others: Kernels and strategies with fewer cases, each with the number of cases on which it is the fastest.
    """

    device: str
    mask: str
    fastest: tuple[str, ...] = ()
    cases: int = 0
    second: str | None = None
    ratio: Interval | None = None
    others: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.fastest:
            return f"{self.mask}: nothing was measured"
        count = counted(self.cases)
        rest = "".join(f"; {name} is the fastest in {found}, and lacks others" for name, found in self.others.items())
        if len(self.fastest) > 1:
            said = f"a tie of {' and '.join(self.fastest)}"
        else:
            said = f"{self.fastest[0]} is the fastest" if self.second else f"only {self.fastest[0]} was measured"
        if self.second is None or self.ratio is None:
            return f"{self.mask}: {said}, in {count}{rest}"
        interval = f"95 % interval {self.ratio.low:.2f} to {self.ratio.high:.2f}"
        much = f"{self.ratio.value:.2f} times as fast as {self.second} ({interval})"
        return f"{self.mask}: {said}, {much}, in {count}{rest}"


def winners(records: Iterable[Record]) -> list[Winner]:
    """The winner for each mask and device, in the order of the records.

    The kernels and strategies that were measured on the most cases are ranked by the geometric mean of their times. One
    ties with the first if the confidence interval of their ratio contains 1.

    Args:
        records: Records of any number of runs. Of several records of one case, the last counts.
    """
    found: dict[tuple[str, str], dict[str, dict[tuple[object, ...], Record]]] = {}
    for record in records:
        of_mask = found.setdefault((record.device, mask_name(record.pattern, record.factors)), {})
        if record.status == Status.OK and record.samples:
            name = shared_by(record.kernel, record.strategy, record.placement, record.mesh, record.transport)
            of_mask.setdefault(name, {})[problem_key(record)] = record
    return [_winner(device, mask, _of_all_directions(measured)) for (device, mask), measured in found.items()]


def _of_all_directions(measured: Mapping[str, _Cases]) -> Mapping[str, _Cases]:
    """The kernels without pairs that lack a direction: the forward of an added pair is a case of its first kernel."""
    directions = {name: {case.direction for case in cases.values()} for name, cases in measured.items()}
    every = set().union(*directions.values())
    return {name: cases for name, cases in measured.items() if "+" not in name or directions[name] == every}


def problem_key(record: Record) -> tuple[object, ...]:
    """Everything that a record's case has besides its kernel or strategy."""
    shape = record.heads_q, record.heads_kv, record.head_dim, record.dtype
    return record.mask_digest, record.seqlen, record.seed, record.direction, record.world_size, *shape


def _winner(device: str, mask: str, measured: Mapping[str, _Cases]) -> Winner:
    if not measured:
        return Winner(device, mask)
    most = max(map(len, measured.values()))
    # Only kernels with the same cases have times that can be averaged.
    first = next(cases for cases in measured.values() if len(cases) == most)
    whole = {name: cases for name, cases in measured.items() if cases.keys() == first.keys()}
    fastest, ratios = ranking(
        {name: {problem: each.samples for problem, each in cases.items()} for name, cases in whole.items()}
    )
    tied = [name for name, ratio in ratios.items() if ratio.contains(1.0)]
    second = next((name for name in ratios if name not in tied), None)
    counts = {name: _fastest_in(name, measured) for name in measured if name not in whole}
    others = {name: count for name, count in counts.items() if count}
    return Winner(device, mask, (fastest, *tied), most, second, None if second is None else ratios[second], others)


def ranking(measured: Mapping[str, Mapping[Any, Samples]]) -> tuple[str, dict[str, Interval]]:
    """The fastest by the geometric mean of medians, and the time of each other one over its own, the fastest first.

    More problems come before less time. A ratio is the mean over the problems of both. Without one there is no ratio.

    Args:
        measured: The samples of each problem, by the kernel or strategy.
    """
    from longca_bench.reports.intervals import mean_ratio, ratio_intervals

    means = {name: fmean(log(median(samples)) for samples in found.values()) for name, found in measured.items()}
    first, *others = sorted(measured, key=lambda name: (-len(measured[name]), means[name]))
    ratios = {}
    for name in others:
        slower, faster = measured[name], measured[first]
        if pairs := [(slower[problem], faster[problem]) for problem in faster if problem in slower]:
            ratios[name] = mean_ratio(pairs, ratio_intervals(pairs))
    return first, ratios


def _fastest_in(name: str, measured: Mapping[str, _Cases]) -> int:
    """Number of cases on which one kernel or strategy has the least median."""
    return sum(
        record.median == min(cases[problem].median or 0.0 for cases in measured.values() if problem in cases)
        for problem, record in measured[name].items()
    )
