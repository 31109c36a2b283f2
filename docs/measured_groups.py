"""Records in the groups that the pages' tables are of: those of one direction, length and shape.

A draw is one mask of one run. Kernels are compared on a draw, so in one run and on one mask, and medians are taken over
draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from measured_page import bold, table

from longca.masks import PATTERNS
from longca_bench.measuring.records import Record
from longca_bench.reports.run_cells import mask_name, three_digits, tokens, word
from longca_bench.reports.run_source import Run

#: The kernel whose throughput on full attention the others are held against.
FASTEST_FULL = "fa3"
_SHAPE = ("direction", "seqlen", "heads_q", "heads_kv", "head_dim", "dtype")

#: Records of one draw by kernel.
Draw = dict[str, Record]


@dataclass(frozen=True)
class Group:
    """The records that stand in one table.

    Attributes:
        direction: `forward` or `backward`.
        seqlen: Tokens.
        shape: Heads, head dimension and dtype, in words.
        draws: By mask, each with the number of its run: patterns in the registry's order, then by block and share kept.
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

    def throughput(self, mask: str, kernel: str) -> float | None:
        """Median TFLOP/s over the draws; None where none was measured."""
        values = [draw[kernel].tflops for _, draw in self.draws[mask] if _is_ok(draw, kernel)]
        return median(value for value in values if value is not None) if values else None

    def best(self, mask: str) -> str | None:
        """The kernel with the highest throughput."""
        found = {kernel: self.throughput(mask, kernel) or 0.0 for kernel in self.kernels}
        best = max(found, key=lambda kernel: found[kernel], default=None)
        return best if best and found[best] else None

    def ratio(self, mask: str, kernel: str, base: str) -> float | None:
        """Median over draws of a kernel's throughput over that of another."""
        both = (draw for _, draw in self.draws[mask] if _is_ok(draw, kernel) and _is_ok(draw, base))
        values = [(draw[kernel].tflops or 0.0) / (draw[base].tflops or math.inf) for draw in both]
        return median(values) if values else None

    def share_of_limit(self, mask: str, kernel: str) -> float | None:
        """Median over draws of throughput over [FASTEST_FULL's on full attention × the draw's tile efficiency]."""
        values = [
            (draw[kernel].tflops or 0.0) / (self.full[run] * draw[kernel].tile_efficiency)
            for run, draw in self.draws[mask]
            if run in self.full and _is_ok(draw, kernel)
        ]
        return median(values) if values else None


def groups(runs: Sequence[Run], *, per_head: bool | None = None) -> list[Group]:
    """A group a direction, length and shape, shorter lengths first.

    Args:
        runs: The runs.
        per_head: Whether masks are to be those that differ by head, which are the block-sparse ones; None for all.
    """
    records = [
        (number, record)
        for number, run in enumerate(runs)
        for record in run.records
        if per_head is None or PATTERNS[record.pattern].per_head is per_head
    ]
    shapes = {tuple(getattr(r, name) for name in _SHAPE) for _, r in records}
    ordered = sorted(shapes, key=lambda s: (s[0] != "forward", s[2:], s[1]))
    return [_group([(n, r) for n, r in records if tuple(getattr(r, a) for a in _SHAPE) == shape]) for shape in ordered]


def _group(records: Sequence[tuple[int, Record]]) -> Group:
    draws: dict[str, dict[tuple[int, str, int], Draw]] = {}
    reached: dict[int, list[float]] = {}
    for number, record in sorted(records, key=lambda item: _place(item[1])):
        of_mask = draws.setdefault(mask_name(record.pattern, record.factors), {})
        of_mask.setdefault((number, record.mask_digest, record.seed), {})[record.kernel] = record
        if (record.kernel, record.pattern, record.status) == (FASTEST_FULL, "full", "ok") and record.tflops:
            reached.setdefault(number, []).append(record.tflops)
    some = records[0][1]
    ok = {record.kernel for _, record in records if record.status == "ok"}
    return Group(
        some.direction,
        some.seqlen,
        f"{some.heads_q}:{some.heads_kv} heads of {some.head_dim}",
        {mask: [(key[0], draw) for key, draw in of_mask.items()] for mask, of_mask in draws.items()},
        {number: median(values) for number, values in reached.items()},
        tuple(dict.fromkeys(record.kernel for _, record in records if record.kernel in ok)),
    )


def _place(record: Record) -> tuple[Any, ...]:
    return list(PATTERNS).index(record.pattern), record.factors.get("block", 0), record.factors.get("kept", 0.0)


def throughput(group: Group, about: Mapping[str, Callable[[str, Sequence[Draw]], str]]) -> str:
    """Masks by kernels, TFLOP/s, the best in bold.

    Args:
        group: The records.
        about: The columns before the kernels', by their heads: what they say of a mask and its draws.
    """
    body = []
    for mask, numbered in group.draws.items():
        best, draws = group.best(mask), [draw for _, draw in numbered]
        cells = [bold(_cell(group, mask, kernel), kernel == best) for kernel in group.kernels]
        if any(cells):
            body.append([*(say(mask, draws) for say in about.values()), *cells])
    return table([*about, *(f"`{kernel}`" for kernel in group.kernels)], body)


def _cell(group: Group, mask: str, kernel: str) -> str:
    """Throughput, with the share of draws that it is of where that is not all; or the word for what happened."""
    value = group.throughput(mask, kernel)
    asked = [draw[kernel] for _, draw in group.draws[mask] if kernel in draw]
    if value is None:
        return " ".join(dict.fromkeys(word(record.status) for record in asked))
    measured = sum(record.status == "ok" for record in asked)
    return three_digits(value) + (f" ({measured} of {len(asked)})" if measured < len(asked) else "")


def _is_ok(draw: Draw, kernel: str) -> bool:
    record = draw.get(kernel)
    return record is not None and record.status == "ok" and bool(record.tflops)
