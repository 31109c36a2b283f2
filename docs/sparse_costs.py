"""What block-sparse attention costs beside its time: planning, the plan's bytes, and peak memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

from measured_page import table
from sparse_tables import DIRECTIONS, KEPT, SEQLEN, block_of, block_sparse, block_words, heads_of, kept_of

from longca_bench.measuring.records import Record
from longca_bench.reports.run_cells import three_digits, tokens, word
from longca_bench.reports.run_source import Run

_BLOCKS = (64, 128, None)
_APART = 10  # times the median of a kernel's other plans from which its first is told apart
_OURS = "bsa"

Row = dict[str, Any]


def first_plan_records(run: Run) -> Iterator[tuple[Record, float]]:
    """Each kernel's first plan in a run that took far longer than its others of that length, and their median."""
    by_kernel: dict[str, list[Record]] = {}
    for record in block_sparse(run):
        by_kernel.setdefault(record.kernel, []).append(record)
    for first, *others in by_kernel.values():
        usual = [r.plan_seconds for r in others if r.seqlen == first.seqlen and r.plan_seconds is not None]
        if first.plan_seconds and usual and first.plan_seconds > _APART * median(usual):
            yield first, median(usual)


def first_plans(runs: Sequence[Run]) -> str:
    """The first plans that took far longer than the others: these compile, or load what was compiled."""
    body = []
    for run in runs:
        for first, usual in first_plan_records(run):
            times = (three_digits(value) for value in (first.plan_seconds or 0.0, usual * 1e3))
            body.append([f"`{first.kernel}`", f"`{run.folder.name}`", *times])
    if not body:
        return "*None took far longer than those after it.*"
    return table(["kernel", "run", "first plan, s", "its others, ms"], body, left=(0, 1))


def costs(runs: Sequence[Run]) -> str:
    """A table a kind of heads: kernels and directions by blocks, at SEQLEN tokens and half kept."""
    apart = {id(first) for run in runs for first, _ in first_plan_records(run)}
    records = [r for run in runs for r in block_sparse(run) if (r.seqlen, kept_of(r)) == (SEQLEN, KEPT)]
    parts = []
    for heads in dict.fromkeys(sorted(map(heads_of, records), key=lambda text: int(text.partition(":")[2]))):
        here = [record for record in records if heads_of(record) == heads]
        body = []
        for kernel in dict.fromkeys(record.kernel for record in here):
            for direction in DIRECTIONS:
                of_row = [r for r in here if (r.kernel, r.direction) == (kernel, direction)]
                by_block = ([r for r in of_row if block_of(r) == block] for block in _BLOCKS)
                if of_row:
                    body.append([f"`{kernel}`", direction, *(_cost(cell, apart) for cell in by_block)])
        parts.append(f"{heads} heads:\n\n{table(['kernel', '', *map(block_words, _BLOCKS)], body, left=(0, 1))}")
    return "\n\n".join(parts)


def _cost(records: Sequence[Record], apart: set[int]) -> str:
    """Planning without first plans, the plan's bytes, and the peak."""
    if not records:
        return "–"
    plans = [r.plan_seconds for r in records if r.plan_seconds is not None and id(r) not in apart]
    plan = three_digits(median(plans) * 1e3) if plans else "first"
    mask = max(record.metadata_bytes or 0 for record in records) / 2**20
    peak = max(record.peak_bytes or 0 for record in records) / 2**30
    return f"{plan} / {three_digits(mask)} / {three_digits(peak)}"


def metadata(rows: Sequence[Row]) -> str:
    """Planning's time, bytes and peak by kernel and length, a kind of heads after another."""
    parts = []
    for heads in dict.fromkeys(row["heads"] for row in rows):
        here = [row for row in rows if row["heads"] == heads]
        longest = max(row["seqlen"] for row in here)
        parts.append(f"### {heads} heads, blocks of {here[0]['block']}, {here[0]['kept']:.0%} kept")
        for title, field, factor in (
            ("Milliseconds of planning", "seconds", 1e3),
            ("MiB of the plan", "metadata_bytes", 2**-20),
            ("MiB, the allocator's peak while planning", "peak_bytes", 2**-20),
            ("Seconds of the first call, which may compile", "first_seconds", 1.0),
        ):
            parts.append(f"{title}:\n\n{_by_length(here, field, factor)}")
        parts.append(_ours_over(here, longest))
    return "\n\n".join(parts)


def _by_length(rows: Sequence[Row], field: str, factor: float) -> str:
    lengths = sorted({row["seqlen"] for row in rows})
    cells = {(row["kernel"], row["seqlen"]): _value(row, field, factor) for row in rows}
    body = [[f"`{kernel}`", *(cells.get((kernel, n), "") for n in lengths)] for kernel in _measured_kernels(rows)]
    return table(["kernel", *map(tokens, lengths)], body)


def _measured_kernels(rows: Iterable[Row]) -> list[str]:
    """Those of which anything was measured, or tried."""
    return list(dict.fromkeys(row["kernel"] for row in rows if row["status"] != "unsupported"))


def _value(row: Row, field: str, factor: float) -> str:
    if row["status"] != "ok":
        return word(row["status"])
    value = row.get(field)
    return "–" if value is None else three_digits(value * factor)


def _ours_over(rows: Sequence[Row], seqlen: int) -> str:
    """Our plan's bytes over each other kernel's at the longest length."""
    sizes = {row["kernel"]: row["metadata_bytes"] for row in rows if (row["status"], row["seqlen"]) == ("ok", seqlen)}
    if not (ours := sizes.get(_OURS)):
        return f"*`{_OURS}` was not measured at {tokens(seqlen)} tokens.*"
    others = [f"`{kernel}` {ours / size:.3f}" for kernel, size in sizes.items() if size and kernel != _OURS]
    return f"At {tokens(seqlen)} tokens the bytes of `{_OURS}`'s plan over those of {', '.join(others)}."
