"""A run as tables: one a direction, masks down, kernels across, time and throughput in the cells.

Of several ranks it is one a mask and direction, strategies down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from longca_bench.reports.rank_cells import HEADS, LEGEND, RankTable, alone, rank_tables, refusals
from longca_bench.reports.run_cells import (
    Row,
    cell,
    counts,
    failures,
    idle,
    mask_name,
    rows,
    shape_columns,
    throughput_unit,
    unsupported,
)
from longca_bench.reports.text import printable, safe
from longca_bench.reports.whole_table import print_whole

if TYPE_CHECKING:
    from rich.console import Console

    from longca_bench.measuring.records import Record

__all__ = ["print_run"]

_MASK, _KERNEL = 22, 15  # characters that the columns about a mask take beside its name, and those of one kernel
_NAME, _SHAPE = 24, 10  # of the longest pattern's name, and of a column that tells shapes apart
_TEXT = 3  # columns of several ranks that are text
_ALWAYS = ("strategy", "ms")


def print_run(console: Console, records: Sequence[Record]) -> None:
    """Prints the tables, what failed and why, and the counts of each status.

    Args:
        console: Where to; tables are split where it is too narrow for all kernels.
        records: The run's records.
    """
    of_one = alone(records)
    nothing = idle(of_one)
    kernels = [kernel for kernel in dict.fromkeys(record.kernel for record in of_one) if kernel not in nothing]
    names = [mask_name(record.pattern, record.factors) for record in of_one]
    about = _MASK + max(_NAME, *map(len, names), 0) + _SHAPE * len(shape_columns(of_one))
    fitting = max(1, (console.width - about) // _KERNEL)
    for direction in dict.fromkeys(record.direction for record in of_one):
        chosen = [record for record in of_one if record.direction == direction]
        for first in range(0, len(kernels), fitting):
            print_whole(console, _table(direction, chosen, kernels[first : first + fitting]))
    tables = rank_tables(records)
    for table in tables:
        console.print(f"[bold]{safe(table.title)}[/]")  # it may be wider than its table
        print_whole(console, _rank_table(table, console.width))
    if tables:
        console.print(f"[dim]{LEGEND}. The Markdown page has every column.[/]")
    for line in _remarks(records):
        console.print(line)
    console.print(counts(records))


def _table(direction: str, records: Sequence[Record], kernels: Sequence[str]) -> Table:
    unit, factor = throughput_unit(records)
    table = Table(title=f"{direction}: ms and {unit}", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("mask")
    shape = shape_columns(records)
    for head in ("tokens", *shape, "dense", "tiles"):
        table.add_column(head, justify="right", no_wrap=True)
    for kernel in kernels:
        table.add_column(safe(kernel), justify="right", no_wrap=True, min_width=_KERNEL - 3)
    last = ""
    for row in rows(records):
        mask, *about = row.about(shape)
        if last not in ("", about[0]):
            table.add_section()
        last = about[0]
        table.add_row(safe(mask), *about, *(_cell(row, kernel, factor) for kernel in kernels))
    return table


def _cell(row: Row, kernel: str, factor: float) -> Text:
    record = row.records.get(kernel)
    if record is None:
        return Text("")
    return Text(cell(record, factor), style=_style(record, row.fastest))


def _style(record: Record, fastest: float | None) -> str:
    if record.status == "unsupported":
        return "dim"
    if record.status != "ok":
        return "red"
    return "bold green" if record.median == fastest else ""


def _rank_table(about: RankTable, width: int) -> Table:
    """A table of the columns that say something, as many as fit; but always what was measured, and its time."""
    table = Table(box=box.SIMPLE_HEAD)
    cells = [max(len(row.cells[index]) for row in about.rows) for index in range(len(HEADS))]
    sizes = [max(cell, len(head)) + 3 for cell, head in zip(cells, HEADS, strict=True)]  # with padding and a rule
    room = width - 2 - sum(size for size, head in zip(sizes, HEADS, strict=True) if head in _ALWAYS)
    chosen = list[int]()
    for index, head in enumerate(HEADS):
        room -= 0 if head in _ALWAYS else sizes[index]
        if cells[index] and (room >= 0 or head in _ALWAYS):
            chosen.append(index)
            table.add_column(head, justify="left" if index < _TEXT else "right", no_wrap=True)
    for row in about.rows:
        style = _style(row.record, about.fastest)
        table.add_row(*(Text(printable(row.cells[index]), style=style) for index in chosen))
    return table


def _remarks(records: Sequence[Record]) -> Iterator[str]:
    """What failed, each message once; and which masks a kernel does not take."""
    for failure in failures(records):
        yield f"[red]{safe(failure.status)}[/] {safe(failure.kernel)}, {failure.count}: {safe(failure.message)}"
        if failure.advice:
            yield f"  [yellow]{safe(failure.advice)}[/]"
    for refusal in refusals(records):
        yield f"– {safe(refusal)}"
    of_one = alone(records)
    nothing = idle(of_one)
    if nothing:
        verb = "take" if len(nothing) > 1 else "takes"
        yield f"– {safe(', '.join(nothing))} {verb} nothing of this run; longca list-capabilities says why"
    for kernel, patterns in unsupported(record for record in of_one if record.kernel not in nothing):
        why = f"longca list-capabilities --why {safe(kernel)} {safe(patterns[0].partition(' ')[0])}"
        yield f"– {safe(kernel)} does not take {safe(', '.join(patterns))}; {why} says why"
