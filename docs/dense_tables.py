"""Tables of runs of the twelve static masks: throughput, ratios, the limit, and costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from measured_groups import FASTEST_FULL, Draw, Group, groups, throughput
from measured_page import bold, table

from longca_bench.measuring.records import Record
from longca_bench.reports.run_cells import three_digits, tokens
from longca_bench.reports.run_source import Run

#: What ratios are over.
BASELINE = "flex"


@dataclass(frozen=True)
class Tables:
    """The tables of some runs."""

    runs: Sequence[Run]

    @cached_property
    def groups(self) -> list[Group]:
        """A group a direction, length and shape."""
        return groups(self.runs)

    def throughput(self) -> str:
        """Masks by kernels, TFLOP/s."""
        return "\n\n".join(
            f"### {group.title}\n\n{throughput(group, _ABOUT)}" for group in self.groups if group.kernels
        )

    def over_baseline(self) -> str:
        """Every kernel's throughput over the baseline's."""
        tables = [
            f"### {group.title}: over {BASELINE}\n\n{_ratios(group)}" for group in self.groups if _has_base(group)
        ]
        return "\n\n".join(tables) or f"*No ratios: {BASELINE} is not among what was measured.*"

    def near_limit(self) -> str:
        """The best kernel of each mask, and how near it comes to full attention's speed on the mask's tiles."""
        limited = [group for group in self.groups if group.full]
        shape = len({group.shape for group in limited}) > 1
        heads = ["mask", *(_short_title(group, with_shape=shape) for group in limited)]
        if not limited:
            return f"*No limit: {FASTEST_FULL} on full attention is not among what was measured.*"
        body = []
        for pattern in dict.fromkeys(pattern for group in limited for pattern in group.draws):
            cells = (_limit_cell(group, pattern) for group in limited)
            body.append([f"`{pattern}`", *cells])
        return table(heads, body)

    def costs(self) -> str:
        """Per kernel and length what backward cases cost beside time: planning, the mask's bytes, the peak."""
        found: dict[str, dict[int, list[Record]]] = {}
        records = [r for run in self.runs for r in run.records if r.status == "ok" and r.direction == "backward"]
        for record in records:
            found.setdefault(record.kernel, {}).setdefault(record.seqlen, []).append(record)
        lengths = sorted({record.seqlen for record in records})
        body = [[f"`{kernel}`", *(_cost(cases.get(n, [])) for n in lengths)] for kernel, cases in found.items()]
        return table(["kernel", *(tokens(n) for n in lengths)], body)


def _ratios(group: Group) -> str:
    others = [kernel for kernel in group.kernels if kernel != BASELINE]
    found = {p: {kernel: group.ratio(p, kernel, BASELINE) for kernel in others} for p in group.draws}
    body = []
    for pattern, ratios in found.items():
        most = max((value for value in ratios.values() if value is not None), default=None)
        if most is not None:
            cells = (bold(_times(value), value == most and value is not None) for value in ratios.values())
            body.append([f"`{pattern}`", *cells])
    means = []
    for kernel in others:
        logs = [math.log(value) for ratios in found.values() if (value := ratios[kernel]) is not None]
        means.append(f"{_times(math.exp(sum(logs) / len(logs)))} ({len(logs)})" if logs else "–")
    body.append(["*geometric mean (masks)*", *means])
    return table(["mask", *(f"`{kernel}`" for kernel in others)], body)


def _short_title(group: Group, *, with_shape: bool) -> str:
    return f"{group.direction}, {tokens(group.seqlen)}" + (f", {group.shape}" if with_shape else "")


def _limit_cell(group: Group, pattern: str) -> str:
    best = group.best(pattern) if pattern in group.draws else None
    share = group.share_of_limit(pattern, best) if best else None
    return "" if share is None else f"`{best}` {share:.0%}"


def _cost(records: Sequence[Record]) -> str:
    if not records:
        return "–"
    plan = median(record.plan_seconds or 0.0 for record in records) * 1e3
    mask = max(record.metadata_bytes or 0 for record in records) / 2**20
    peak = max(record.peak_bytes or 0 for record in records) / 2**30
    return f"{three_digits(plan)} / {three_digits(mask)} / {three_digits(peak)}"


def _has_base(group: Group) -> bool:
    return BASELINE in group.kernels and len(group.kernels) > 1


def _range(draws: Sequence[Draw], value: Callable[[Record], float]) -> str:
    """A share of all draws, or the least and the greatest."""
    shares = [f"{share:.0%}" for share in sorted(value(next(iter(draw.values()))) for draw in draws)]
    return shares[0] if shares[0] == shares[-1] else f"{shares[0].rstrip('%')}–{shares[-1]}"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


#: What a table of throughput says of a mask before its figures.
_ABOUT: dict[str, Callable[[str, Sequence[Draw]], str]] = {
    "mask": lambda mask, _: f"`{mask}`",
    "tiles": lambda _, draws: _range(draws, lambda record: record.tile_efficiency),
    "draws": lambda _, draws: str(len(draws)),
}
