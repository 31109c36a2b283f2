"""What the tables of several ranks say, whatever they are drawn with: one a mask and direction, strategies down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca_bench.reports.run_cells import three_digits, throughput_unit, tokens, word

if TYPE_CHECKING:
    from longca_bench.measuring.records import Record

__all__ = ["HEADS", "LEGEND", "RankRow", "RankTable", "alone", "rank_tables", "refusals", "together"]

#: The columns, the most telling first; the first three are text.
HEADS = (
    "strategy", "placement", "kernel", "ms", "per rank", "of alone", "hidden", "area", "time", "of abreast", "GB/s",
    "GiB", "error", "alone",
)  # fmt: skip
LEGEND = (
    "per rank: throughput of each; of alone: its share of that of the kernel on one device with as much work; hidden: "
    "share of communication behind computing; area, time: the busiest rank over the average one; of abreast: the share "
    "where all devices compute as much at once, each for itself; GB/s: bus bandwidth "
    "of the communication alone; GiB: peak of memory; error: of the worst row, and alone the kernel's own"
)


@dataclass(frozen=True)
class RankRow:
    """One case.

    Attributes:
        record: Its record.
        cells: What is shown of it, by column.
    """

    record: Record
    cells: tuple[str, ...]


@dataclass(frozen=True)
class RankTable:
    """The cases of one mask and direction.

    Attributes:
        title: What they have in common.
        rows: They, in the order in which they were measured.
        fastest: Least time that was measured, where several were.
    """

    title: str
    rows: tuple[RankRow, ...]
    fastest: float | None


def together(records: Iterable[Record]) -> list[Record]:
    """The records of several ranks."""
    return [record for record in records if record.strategy is not None]


def alone(records: Iterable[Record]) -> list[Record]:
    """The records of one device."""
    return [record for record in records if record.strategy is None]


def rank_tables(records: Iterable[Record]) -> list[RankTable]:
    """The tables of those records that are of several ranks; a case that was refused has no row."""
    found: dict[tuple[object, ...], list[Record]] = {}
    for r in together(records):
        shape = (r.direction, r.pattern, r.seqlen, r.mask_digest, r.heads_q, r.heads_kv, r.head_dim, r.dtype)
        found.setdefault((*shape, r.seed, r.world_size), []).append(r)
    return [made for group in found.values() if (made := _table(group)).rows]


def refusals(records: Iterable[Record]) -> Iterator[str]:
    """Why cases of several ranks were refused: each reason once, with the strategies and placements."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for record in together(records):
        if record.status == "unsupported":
            found.setdefault((record.kernel, record.message), {})[f"{record.strategy} {record.placement}"] = None
    for (kernel, message), ways in found.items():
        yield f"{kernel} with {', '.join(ways)}: {message}"


def _table(records: Sequence[Record]) -> RankTable:
    some = records[0]
    unit, factor = throughput_unit(records)
    shape = f"{some.heads_q}:{some.heads_kv}×{some.head_dim} {some.dtype}"
    ranks = "1 rank" if some.world_size == 1 else f"{some.world_size} ranks"
    title = f"{some.pattern} {some.direction}, {tokens(some.seqlen)} tokens, {ranks}, {shape}: ms and {unit}"
    shown = [record for record in records if record.status != "unsupported"]
    rows = tuple(RankRow(r, (*_about(r, records), *_figures(r, factor))) for r in shown)
    times = [record.median for record in records if record.median is not None and record.status == "ok"]
    return RankTable(title, rows, min(times) if len(times) > 1 else None)


def _about(record: Record, others: Sequence[Record]) -> tuple[str, str, str]:
    """Strategy, placement and kernel; with the mesh where there are several axes."""
    placement = record.placement or ""
    if record.placed is not None and record.placed != placement:
        placement = f"{placement}: {record.placed}"
    axes, sizes = _mesh(record)
    strategy = record.strategy or ""
    if any(other.strategy == record.strategy and _mesh(other)[0] != axes for other in others):
        strategy += f" {record.mesh}"  # the same axes in another order
    elif len(axes) > 1:
        strategy += f" {'×'.join(sizes)}"
    return strategy, placement, record.kernel


def _mesh(record: Record) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The axes of a mesh, and their sizes."""
    pairs = [axis.partition("=") for axis in (record.mesh or "").split(",")]
    return tuple(name for name, _, _ in pairs), tuple(size for _, _, size in pairs)


def _figures(record: Record, factor: float) -> tuple[str, ...]:
    if record.median is None or record.tflops is None:
        return (word(record.status), *("",) * (len(HEADS) - 4))
    return (
        three_digits(record.median * 1e3) + ("?" if record.status == "suspect" else ""),
        three_digits(record.tflops * factor),
        _share(_over(record.alone_seconds, record.median)),
        _share(record.hidden),
        _times(record.area_imbalance),
        _times(record.time_imbalance),
        _share(_over(record.abreast_seconds, record.median)),
        three_digits(record.communication["all"]["busbw"]) if record.communication else "",
        "" if record.peak_bytes is None else f"{record.peak_bytes / 2**30:.2f}",
        _error(record.findings),
        _error(record.alone_findings),
    )


def _over(seconds: float | None, taken: float) -> float | None:
    return None if seconds is None else seconds / taken


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _error(findings: Iterable[dict[str, object]]) -> str:
    """The largest error of the output or of a gradient."""
    errors = [found["error"] for found in findings if found["tensor"] in ("out", "dq", "dk", "dv")]
    known = [error for error in errors if isinstance(error, float)]
    return f"{max(known):.1e}" if known else ""
