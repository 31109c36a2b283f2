"""A run as tables: one a direction, masks down, kernels across, time and throughput in the cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from longca.reports.text import safe

if TYPE_CHECKING:
    from rich.console import Console

    from longca.bench.records import Record

__all__ = ["print_run"]

_SHORT = {"unsupported": "–", "wrong": "WRONG", "oom": "OOM", "error": "ERROR"}
_MARGIN, _KERNEL = 46, 15  # characters that the columns about masks take, and those of one kernel


def print_run(console: Console, records: Sequence[Record]) -> None:
    """Prints the tables, what failed and why, and the counts of each status.

    Args:
        console: Where to; tables are split where it is too narrow for all kernels.
        records: The run's records.
    """
    kernels = list(dict.fromkeys(record.kernel for record in records))
    fitting = max(1, (console.width - _MARGIN) // _KERNEL)
    for direction in dict.fromkeys(record.direction for record in records):
        chosen = [record for record in records if record.direction == direction]
        for first in range(0, len(kernels), fitting):
            console.print(_table(direction, chosen, kernels[first : first + fitting]))
    for line in _remarks(records):
        console.print(line)
    counts = Counter(record.status for record in records)
    console.print(f"{len(records)} cases: " + ", ".join(f"{count} {status}" for status, count in counts.items()))


def _table(direction: str, records: Sequence[Record], kernels: Sequence[str]) -> Table:
    rows: dict[tuple[str, ...], dict[str, Record]] = {}
    for record in records:
        shape = f"{record.heads_q}:{record.heads_kv} {record.head_dim} {record.dtype} {record.seed}"
        rows.setdefault((str(record.seqlen), record.pattern, shape), {})[record.kernel] = record
    unit, factor = _unit(records)
    table = Table(title=f"{direction}: ms and {unit}", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("mask", no_wrap=True)
    for head in ("tokens", "dense", "tiles"):
        table.add_column(head, justify="right", no_wrap=True)
    for kernel in kernels:
        table.add_column(safe(kernel), justify="right", no_wrap=True, min_width=_KERNEL - 3)
    last = ""
    for (seqlen, pattern, _), cells in rows.items():
        if last not in ("", seqlen):
            table.add_section()
        last = seqlen
        best = _fastest(cells.values())
        some = next(iter(cells.values()))
        about = (safe(pattern), _tokens(some.seqlen), f"{some.density:.1%}", f"{some.tile_efficiency:.0%}")
        table.add_row(*about, *(_cell(cells.get(kernel), best, factor) for kernel in kernels))
    return table


def _unit(records: Sequence[Record]) -> tuple[str, float]:
    """TFLOP/s, or GFLOP/s where nothing reaches one TFLOP/s."""
    best = max((record.tflops for record in records if record.tflops is not None), default=1.0)
    return ("TFLOP/s", 1.0) if best >= 1 else ("GFLOP/s", 1e3)


def _tokens(seqlen: int) -> str:
    return f"{seqlen // 1024} K" if seqlen % 1024 == 0 else str(seqlen)


def _fastest(records: Iterable[Record]) -> float | None:
    times = [record.median for record in records if record.median is not None]
    return min(times) if len(times) > 1 else None


def _cell(record: Record | None, best: float | None, factor: float) -> Text:
    if record is None:
        return Text("")
    if record.median is None or record.tflops is None:
        return Text(_SHORT.get(record.status, record.status), style="dim" if record.status == "unsupported" else "red")
    text = f"{_three_digits(record.median * 1e3)} {_three_digits(record.tflops * factor):>5}"
    return Text(text, style="bold green" if record.median == best else "")


def _three_digits(value: float) -> str:
    """Three significant digits, never an exponent."""
    for bound, digits in ((0.0995, 4), (0.995, 3), (9.95, 2), (99.5, 1)):
        if value < bound:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"


def _remarks(records: Sequence[Record]) -> Iterator[str]:
    """What failed, each message once; and which masks a kernel does not take."""
    for status in ("wrong", "error", "oom"):
        messages = Counter((r.kernel, r.message) for r in records if r.status == status)
        for (kernel, message), count in messages.items():
            cases = "1 case" if count == 1 else f"{count} cases"
            yield f"[red]{status}[/] {safe(kernel)}, {cases}: {safe(message)}"
    unsupported: dict[str, dict[str, None]] = {}
    for record in records:
        if record.status == "unsupported":
            unsupported.setdefault(record.kernel, {})[record.pattern] = None
    for kernel, patterns in unsupported.items():
        why = f"longca list-capabilities --why {safe(kernel)} {safe(next(iter(patterns)))}"
        yield f"– {safe(kernel)} does not take {safe(', '.join(patterns))}; {why} says why"
