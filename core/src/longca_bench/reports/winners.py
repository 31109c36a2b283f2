"""The fastest kernel or strategy for each mask, with ties called ties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from longca_bench.measuring.status import Status
from longca_bench.reports.words import counted, mask_name, shared_by

if TYPE_CHECKING:
    from longca_bench.measuring.records import Record
    from longca_bench.measuring.statistics import Interval

__all__ = ["Winner", "problem_key", "winners"]

#: The measured cases of one kernel or strategy, by everything else that a case has.
_Cases = Mapping[tuple[object, ...], "Record"]


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
    ranked = sorted(whole, key=lambda name: _mean(whole[name]))
    ratios = {name: _ratio(whole[name], whole[ranked[0]]) for name in ranked[1:]}
    tied = [name for name, ratio in ratios.items() if ratio.contains(1.0)]
    second = next((name for name in ratios if name not in tied), None)
    others = {name: _fastest_in(name, measured) for name in measured if name not in whole}
    return Winner(
        device,
        mask,
        (ranked[0], *tied),
        most,
        second,
        None if second is None else ratios[second],
        {name: count for name, count in others.items() if count},
    )


def _mean(cases: _Cases) -> float:
    """The logarithm of the geometric mean of median times."""
    from math import log
    from statistics import fmean

    return fmean(log(record.median) for record in cases.values() if record.median)


def _ratio(slower: _Cases, faster: _Cases) -> Interval:
    from longca_bench.measuring.statistics import geometric_mean_interval

    return geometric_mean_interval([(slower[problem].samples, faster[problem].samples) for problem in faster])


def _fastest_in(name: str, measured: Mapping[str, _Cases]) -> int:
    """Number of cases on which one kernel or strategy has the least median."""
    return sum(
        record.median == min(other.median for other in _on(problem, measured) if other.median is not None)
        for problem, record in measured[name].items()
    )


def _on(problem: tuple[object, ...], measured: Mapping[str, _Cases]) -> Sequence[Record]:
    return [cases[problem] for cases in measured.values() if problem in cases]
