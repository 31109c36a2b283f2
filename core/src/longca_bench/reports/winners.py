"""The fastest kernel or strategy for each mask, with ties called ties.

One is the fastest only among those that the same run measured on the same draws, while the machine was quiet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import log
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from longca_bench.reports.words import counted

if TYPE_CHECKING:
    from pandas import DataFrame

    from longca_bench.measuring.records import Record
    from longca_bench.measuring.statistics import Interval
    from longca_bench.reports.rows import Rows

__all__ = ["Winner", "best_of", "problem_key", "winners"]

#: The fields that a case has besides its kernel or strategy.
_PROBLEM = (
    "mask_digest", "seqlen", "seed", "direction", "world_size", "heads_q", "heads_kv", "head_dim", "head_dim_v",
    "dtype", "softcap", "sinks",
)  # fmt: skip
#: The samples of one kernel or strategy by run and problem.
_Cases = Mapping[tuple[object, ...], Sequence[float]]


#: Kernels and strategies with fewer cases that a sentence names, at most.
_NAMED = 2


@dataclass(frozen=True)
class Winner:
    """The fastest kernel or strategy for one mask, over all of its lengths, shapes and directions.

    Attributes:
        mask: The mask's pattern, with the factors that its suite gives.
        fastest: The fastest one, or several in a tie. Empty if there is none.
        why_none: Why there is none.
        cases: Number of cases that these were measured on.
        second: The fastest one outside the tie, or None.
        ratio: The time of `second` over the time of the first of `fastest`, as a geometric mean over their cases.
        others: Kernels and strategies with fewer cases, each with the number of cases on which it is the fastest.
    """

    mask: str
    fastest: tuple[str, ...] = ()
    why_none: str = "nothing was measured"
    cases: int = 0
    second: str | None = None
    ratio: Interval | None = None
    others: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.fastest:
            return f"{self.mask}: {self.why_none}"
        named = list(self.others.items())
        rest = "".join(f"; {name} is the fastest in {found}, and lacks others" for name, found in named[:_NAMED])
        rest += f"; {len(named) - _NAMED} more lack others" if len(named) > _NAMED else ""
        if len(self.fastest) > 1:
            said = f"a tie of {' and '.join(self.fastest)}"
        else:
            only = f"only {self.fastest[0]} was measured{' on all' * bool(self.others)}"
            said = f"{self.fastest[0]} is the fastest" if self.second else only
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
    frame = rows.frame(("device", "mask", "who", "status", "samples", "busy", "run_number", *_PROBLEM))
    found: dict[tuple[str, str], dict[str, dict[tuple[object, ...], Sequence[float]]]] = {}
    disturbed = set()
    for device, mask, who, status, samples, busy, *case in frame.astype(object).itertuples(index=False, name=None):
        of_mask, key = found.setdefault((device, mask), {}), tuple(map(str, case))
        if status == "ok" and len(samples):
            of_mask.setdefault(who, {})[key] = samples
            disturbed |= {key} if busy else set()
    return [_winner(mask, measured, disturbed) for (_, mask), measured in found.items()]


def best_of(frame: DataFrame, group: list[str], rival: str, figure: str, *, most: bool = False) -> DataFrame:
    """The rival with the best median figure in each group that has one.

    It has to be the best one too beside each other rival of the group on the draws that both have. Draws with a time of
    a busy machine do not count.

    Args:
        frame: Measured rows. `_draw` has the draw in its run, and `_busy` whether the machine was busy.
        group: The columns whose rivals compete.
        rival: The column of the rivals.
        figure: The column of the figures.
        most: Whether the highest one is the best.

    Returns:
        A row for each group with a best one, with the columns `group` and `rival`.
    """
    known = frame.dropna(subset=[figure])
    known = known.assign(own=-known[figure] if most else known[figure])
    figures = known.groupby([*group, rival], as_index=False)["own"].median().sort_values("own", kind="stable")
    first = figures.drop_duplicates(group)[[*group, rival]]
    quiet = known[~known.groupby([*group, "_draw"])["_busy"].transform("any")]
    draws = quiet.groupby([*group, "_draw", rival], as_index=False)["own"].median()
    both = first.merge(draws).merge(draws, on=[*group, "_draw"], suffixes=("", "_other"))
    both = both[both[rival] != both[f"{rival}_other"]]
    both = both.groupby([*group, f"{rival}_other"])[["own", "own_other"]].median()
    beaten = (both["own"] <= both["own_other"]).groupby(group).sum().rename("beaten").reset_index()
    asked = (figures.groupby(group)[rival].size() - 1).rename("asked").reset_index()
    found = first.merge(beaten, on=group).merge(asked, on=group)
    return found[found["beaten"] == found["asked"]]


def _winner(mask: str, measured: Mapping[str, _Cases], disturbed: Set[object]) -> Winner:
    if not measured:
        return Winner(mask)
    # The forward of an added pair is a case of its first kernel, so that the pair lacks a direction.
    place = 1 + _PROBLEM.index("direction")
    directions = {name: {key[place] for key in cases} for name, cases in measured.items()}
    every = set().union(*directions.values())
    measured = {name: cases for name, cases in measured.items() if "+" not in name or directions[name] == every}
    problems = {name: {key[1:] for key in cases} for name, cases in measured.items()}
    most = max(problems.values(), key=len)
    # Only the cases of a run that all of these have give times that can be averaged.
    whole = {name: cases for name, cases in measured.items() if problems[name] == most}
    together = set.intersection(*map(set, whole.values()))
    if not together - disturbed:
        why = "the machine was busy" if together else "no run measured all of them on the same draws"
        return Winner(mask, why_none=f"no kernel is named the fastest, because {why}")
    together -= disturbed
    fastest, ratios = _ranking({name: {key: cases[key] for key in together} for name, cases in whole.items()})
    tied = [name for name, ratio in ratios.items() if ratio.contains(1.0)]
    second = next((name for name in ratios if name not in tied), None)
    medians = {
        name: {key: median(samples) for key, samples in cases.items() if key not in disturbed}
        for name, cases in measured.items()
    }
    least: dict[Any, float] = {}
    for times in medians.values():
        least |= {key: min(time, least.get(key, time)) for key, time in times.items()}
    shared = Counter(key for times in medians.values() for key in times)
    counts = {
        name: sum(time == least[key] and shared[key] > 1 for key, time in times.items())
        for name, times in medians.items()
        if name not in whole
    }
    others = {name: count for name, count in counts.items() if count}
    ratio = None if second is None else ratios[second]
    return Winner(mask, (fastest, *tied), cases=len(together), second=second, ratio=ratio, others=others)


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
