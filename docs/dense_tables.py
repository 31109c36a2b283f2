"""Tables of runs of the twelve static masks: throughput, ratios, the limit, costs, and what was not measured.

A group is one table: the records of one direction, length and shape. A draw is one mask of one run; kernels are
compared on a draw, so in one run and on one mask, and medians are taken over draws.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from longca.bench.records import Record
from longca.masks import PATTERNS
from longca.reports.markdown import escaped
from longca.reports.run_cells import three_digits, tokens, word
from longca.reports.run_source import Run

#: What ratios are over, and whose throughput on full attention is the limit of a mask's whole tiles.
BASELINE, FASTEST_FULL = "flex", "fa3"
_SHAPE = ("direction", "seqlen", "heads_q", "heads_kv", "head_dim", "dtype")
_LONGEST = 220  # characters of a reason

#: Records of one draw by kernel.
Draw = dict[str, Record]


@dataclass(frozen=True)
class Group:
    """The records that stand in one table.

    Attributes:
        direction: `forward` or `backward`.
        seqlen: Tokens.
        shape: Heads, head dimension and dtype, in words.
        draws: By pattern, in the registry's order.
        full: Throughput of FASTEST_FULL on full attention, by run.
        kernels: Those of which anything was measured, in the order of the runs.
    """

    direction: str
    seqlen: int
    shape: str
    draws: dict[str, list[tuple[int, Draw]]]
    full: dict[int, float]
    kernels: tuple[str, ...]

    @property
    def title(self) -> str:
        """A heading's text."""
        return f"{self.direction.capitalize()}, {tokens(self.seqlen)} tokens, {self.shape}"

    def throughput(self, pattern: str, kernel: str) -> float | None:
        """Median TFLOP/s over the draws; None where none was measured."""
        values = [draw[kernel].tflops for _, draw in self.draws[pattern] if _is_ok(draw, kernel)]
        return median(value for value in values if value is not None) if values else None

    def best(self, pattern: str) -> str | None:
        """The kernel with the highest throughput."""
        found = {kernel: self.throughput(pattern, kernel) or 0.0 for kernel in self.kernels}
        best = max(found, key=lambda kernel: found[kernel], default=None)
        return best if best and found[best] else None

    def ratio(self, pattern: str, kernel: str, base: str) -> float | None:
        """Median over draws of a kernel's throughput over that of another."""
        both = (draw for _, draw in self.draws[pattern] if _is_ok(draw, kernel) and _is_ok(draw, base))
        values = [(draw[kernel].tflops or 0.0) / (draw[base].tflops or math.inf) for draw in both]
        return median(values) if values else None

    def share_of_limit(self, pattern: str, kernel: str) -> float | None:
        """Median over draws of throughput over [FASTEST_FULL's on full attention × the draw's tile efficiency]."""
        values = [
            (draw[kernel].tflops or 0.0) / (self.full[run] * draw[kernel].tile_efficiency)
            for run, draw in self.draws[pattern]
            if run in self.full and _is_ok(draw, kernel)
        ]
        return median(values) if values else None


@dataclass(frozen=True)
class Tables:
    """The tables of some runs."""

    runs: Sequence[Run]

    @cached_property
    def groups(self) -> list[Group]:
        """A group a direction, length and shape, shorter lengths first."""
        shapes = {tuple(getattr(r, name) for name in _SHAPE) for run in self.runs for r in run.records}
        return [_group(self.runs, shape) for shape in sorted(shapes, key=lambda s: (s[0] != "forward", s[2:], s[1]))]

    def throughput(self) -> str:
        """Masks by kernels, TFLOP/s."""
        return "\n\n".join(f"### {group.title}\n\n{_throughput(group)}" for group in self.groups if group.kernels)

    def over_baseline(self) -> str:
        """Every kernel's throughput over the baseline's."""
        tables = [
            f"### {group.title}: over {BASELINE}\n\n{_ratios(group)}" for group in self.groups if _has_base(group)
        ]
        return "\n\n".join(tables) or f"*No ratios: {BASELINE} is not among what was measured.*"

    def near_limit(self) -> str:
        """The best kernel of each mask, and how near it comes to full attention's speed on the mask's tiles."""
        groups = [group for group in self.groups if group.full]
        shape = len({group.shape for group in groups}) > 1
        heads = ["mask", *(_short_title(group, with_shape=shape) for group in groups)]
        if not groups:
            return f"*No limit: {FASTEST_FULL} on full attention is not among what was measured.*"
        body = []
        for pattern in dict.fromkeys(pattern for group in groups for pattern in group.draws):
            cells = (_limit_cell(group, pattern) for group in groups)
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

    def not_measured(self) -> str:
        """Every status that is not ok, with its reason and how many cases it stands for."""
        cases: Counter[tuple[str, str, str]] = Counter()
        said: dict[tuple[str, str, str], str] = {}
        patterns: dict[tuple[str, str, str], dict[str, None]] = {}
        for record in (r for run in self.runs for r in run.records if r.status != "ok"):
            key = record.status, record.kernel, re.sub(r"\d+(\.\d+)?", "#", record.message)[:_LONGEST]
            cases[key] += 1
            said.setdefault(key, record.message)
            patterns.setdefault(key, {})[record.pattern] = None
        if not cases:
            return "Nothing: every case was measured."
        body = []
        for key in sorted(cases):
            masks = list(patterns[key])
            which = ", ".join(f"`{name}`" for name in masks) if len(masks) < 12 else "all"
            reason = said[key] if len(said[key]) <= _LONGEST else f"{said[key][:_LONGEST]}…"
            body.append([key[0], f"`{key[1]}`", which, str(cases[key]), escaped(reason)])
        return table(["status", "kernel", "masks", "cases", "reason"], body, left={0, 1, 2, 4})


def table(heads: Sequence[str], body: Iterable[Sequence[str]], left: Iterable[int] = (0,)) -> str:
    """A Markdown table; columns are aligned to the right but for some."""
    rule = ["---" if index in set(left) else "---:" for index in range(len(heads))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *body))


def _is_ok(draw: Draw, kernel: str) -> bool:
    record = draw.get(kernel)
    return record is not None and record.status == "ok" and bool(record.tflops)


def _group(runs: Sequence[Run], shape: tuple[object, ...]) -> Group:
    draws: dict[str, dict[tuple[int, str, int], Draw]] = {pattern: {} for pattern in PATTERNS}
    kernels: dict[str, None] = {}
    full: dict[int, float] = {}
    some: Record | None = None
    for number, run in enumerate(runs):
        chosen = [r for r in run.records if tuple(getattr(r, name) for name in _SHAPE) == shape]
        for some in chosen:
            draws[some.pattern].setdefault((number, some.mask_digest, some.seed), {})[some.kernel] = some
        kernels |= dict.fromkeys(record.kernel for record in chosen if record.status == "ok")
        reached = [r.tflops for r in chosen if (r.kernel, r.pattern, r.status) == (FASTEST_FULL, "full", "ok")]
        if values := [value for value in reached if value]:
            full[number] = median(values)
    assert some is not None, "a shape is that of a record"
    numbered = {
        pattern: [(key[0], draw) for key, draw in of_pattern.items()]
        for pattern, of_pattern in draws.items()
        if of_pattern
    }
    words = f"{some.heads_q}:{some.heads_kv} heads of {some.head_dim}"
    return Group(some.direction, some.seqlen, words, numbered, full, tuple(kernels))


def _throughput(group: Group) -> str:
    body = []
    for pattern, draws in group.draws.items():
        best = group.best(pattern)
        cells = (_bold(_cell(group, pattern, kernel), kernel == best) for kernel in group.kernels)
        body.append([f"`{pattern}`", _range(draws, lambda r: r.tile_efficiency), str(len(draws)), *cells])
    return table(["mask", "tiles", "draws", *(f"`{kernel}`" for kernel in group.kernels)], body)


def _cell(group: Group, pattern: str, kernel: str) -> str:
    """Throughput, with the share of draws that it is of where that is not all; or the word for what happened."""
    value = group.throughput(pattern, kernel)
    asked = [draw[kernel] for _, draw in group.draws[pattern] if kernel in draw]
    if value is None:
        return " ".join(dict.fromkeys(word(record.status) for record in asked))
    measured = sum(record.status == "ok" for record in asked)
    return three_digits(value) + (f" ({measured} of {len(asked)})" if measured < len(asked) else "")


def _ratios(group: Group) -> str:
    others = [kernel for kernel in group.kernels if kernel != BASELINE]
    found = {p: {kernel: group.ratio(p, kernel, BASELINE) for kernel in others} for p in group.draws}
    body = []
    for pattern, ratios in found.items():
        most = max((value for value in ratios.values() if value is not None), default=None)
        if most is not None:
            cells = (_bold(_times(value), value == most and value is not None) for value in ratios.values())
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


def _range(draws: Iterable[tuple[int, Draw]], value: Callable[[Record], float]) -> str:
    """A share of all draws, or the least and the greatest."""
    shares = [f"{share:.0%}" for share in sorted(value(next(iter(draw.values()))) for _, draw in draws)]
    return shares[0] if shares[0] == shares[-1] else f"{shares[0].rstrip('%')}–{shares[-1]}"


def _bold(text: str, is_bold: bool) -> str:
    return f"**{text}**" if is_bold else text


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
