"""Tables in a terminal of any width.

A table that is too wide leaves out columns, those with the highest `drop` first. Then cells show their first figure
alone, and at last each row becomes a list of lines. A sentence takes at most a few lines of a row, and is not broken at
hyphens, so that a command can be copied. A line below the table names the columns that are left out.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from longca_bench.reports.table import Cell, Head, Mark, Table, legend
from longca_bench.reports.text import printable, safe
from longca_bench.reports.words import counted, elsewhere_text, status_counts

if TYPE_CHECKING:
    from rich.console import Console

    from longca_bench.reports.rows import Rows

__all__ = ["print_summary", "print_tables", "print_view"]

_GAP, _LEAST = 2, 16  # columns between two columns of a table, and the least width of a column of sentences
_AT_ONCE = 500  # lines that rich prints at once, which is faster than one by one
_MOST = 4  # lines that a sentence may take in one row; a longer one stands better in a list
_STYLES = {Mark.BEST: "bold green", Mark.FAILED: "red", Mark.QUIET: "dim", Mark.ASIDE: "italic", Mark.NONE: ""}


def print_summary(console: Console, rows: Rows) -> None:
    """Prints the summary of runs. If other kernels run here, one line names those that run on other devices only."""
    from longca_bench.reports.views import SUMMARY, tables

    others = rows.where(elsewhere=True)
    here = rows.where(elsewhere=False) if len(others) < len(rows) else rows
    for name in SUMMARY:
        print_tables(console, tables(name, here))
    console.print(safe(status_counts(here["status"])))
    if here is not rows and len(others):
        console.print(safe(elsewhere_text(len(others), others["kernel"].unique())), soft_wrap=True)
    for sentence in (*rows.disturbed(), *rows.unreached()):
        console.print(safe(sentence), soft_wrap=True)


def print_view(console: Console, rows: Rows, name: str) -> None:
    """Prints the tables of a view. A line below says what the figures of spread columns are."""
    from longca_bench.reports.columns import column
    from longca_bench.reports.view import View
    from longca_bench.reports.views import VIEWS, tables

    found, view = tables(name, rows), VIEWS[name]
    print_tables(console, found)
    if found and isinstance(view, View) and view.across:
        heads = (value.head or column(value.column).head or value.column for value in view.values)
        console.print(f"Each cell: {safe(' / '.join(heads))}")
    if not found:
        console.print(f"The view {safe(name)} has nothing to show of {counted(len(rows), 'row')}.")


def print_tables(console: Console, tables: Iterable[Table]) -> None:
    """Prints tables one after another, each under its title, and last the meaning of their heads."""
    shown: list[Head] = []
    starred = console.color_system is None  # without colours a star marks the best
    for table in tables:
        if table.title:
            console.print(Text(printable(table.title), style="bold"))
        form, widths, remarks = _fitted(_printable(table, starred), console.width)
        lines = _lines(form, widths) if widths else _lists(form, console.width)
        while some := list(islice(lines, _AT_ONCE)):
            console.print(Text("\n").join(some), soft_wrap=True, crop=False)
        best = starred and any(cell.mark is Mark.BEST for row in form.rows for cell in row)
        for note in (*table.notes, *(["* the best"] if best else []), *remarks):
            console.print(Text(printable(note), style="dim"))
        console.print()
        shown += form.heads
    if said := legend(shown):
        console.print(Text(said, style="dim"))
        console.print()


def _printable(table: Table, starred: bool) -> Table:
    """The table with harmless text."""

    def cell(given: Cell) -> Cell:
        star = "*" if starred and given.mark is Mark.BEST else ""
        text = printable(" ".join(given.text.split())) if not given.text.isascii() or " " in given.text else given.text
        text = text if text.isprintable() else printable(" ".join(text.split()))
        return Cell(text + star, given.value, given.mark, given.brief and printable(given.brief) + star)

    heads = tuple(replace(head, text=printable(head.text)) for head in table.heads)
    return replace(table, heads=heads, rows=tuple(tuple(map(cell, row)) for row in table.rows))


def _fitted(table: Table, width: int) -> tuple[Table, list[int], list[str]]:
    """The widest form of a table that fits, the width of each column, and remarks. No widths stand for lists."""
    drops = sorted({head.drop for head in table.heads if head.drop}, reverse=True)
    rows = tuple(tuple(replace(cell, text=cell.brief or cell.text) for cell in row) for row in table.rows)
    for form in (table, replace(table, rows=rows)):
        said = ["Each cell has its first figure alone."] if form.rows != table.rows else []
        for least in (drops[0] + 1 if drops else 1, *drops):
            kept = [place for place, head in enumerate(form.heads) if head.drop < least]
            names = ", ".join(head.text for head in form.heads if head.drop >= least)
            if widths := _widths(shown := form.only(kept), width):
                return shown, widths, [*said, *([f"Left out in so narrow a terminal: {names}."] if names else [])]
    return table, [], []


def _widths(table: Table, width: int) -> list[int]:
    """The width of each column, or nothing if they do not fit. Columns of sentences share the rest of the width."""
    columns = zip(table.heads, *table.rows, strict=True)
    wanted = [max(map(cell_len, (head.text, *(cell.text for cell in cells)))) for head, *cells in columns]
    sentences = [place for place, head in enumerate(table.heads) if head.wrap and wanted[place] > _LEAST]
    room = width - _GAP * (len(wanted) - 1) - sum(wanted) + sum(wanted[place] for place in sentences)
    for number, place in enumerate(sorted(sentences, key=wanted.__getitem__)):
        share = room // (len(sentences) - number)
        if share < min(wanted[place], _LEAST) or wanted[place] > _MOST * share:
            return []
        wanted[place] = min(wanted[place], share)
        room -= wanted[place]
    return wanted if room >= 0 else []


def _lines(table: Table, widths: Sequence[int]) -> Iterator[Text]:
    """The lines of a table whose columns fit."""
    yield from _row(table.heads, [(head.text, "bold") for head in table.heads], widths)
    yield Text("─" * (sum(widths) + _GAP * (len(widths) - 1)), style="dim")
    for row in table.rows:
        yield from _row(table.heads, [(cell.text, _STYLES[cell.mark]) for cell in row], widths)


def _row(heads: Sequence[Head], cells: Sequence[tuple[str, str]], widths: Sequence[int]) -> Iterator[Text]:
    """The lines of one row. A long sentence needs several."""
    parts = [
        textwrap.wrap(text, width, break_on_hyphens=False) if cell_len(text) > width else [text]
        for (text, _), width in zip(cells, widths, strict=True)
    ]
    for number in range(max(map(len, parts))):
        line = Text()
        for place, (head, width, lines) in enumerate(zip(heads, widths, parts, strict=True)):
            text = lines[number] if number < len(lines) else ""
            space = " " * (width - cell_len(text))
            line.append(" " * _GAP if place else "")
            line.append(text + space if head.left else space + text, cells[place][1])
        line.rstrip()
        yield line


def _lists(table: Table, width: int) -> Iterator[Text]:
    """Each row as lines: its first columns of text as a heading, and below each other column with its head."""
    first = next((place for place, head in enumerate(table.heads) if not head.left or head.wrap), 1) or 1
    wrapper = textwrap.TextWrapper(width, "  ", "    ", break_on_hyphens=False)
    for row in table.rows:
        names = ", ".join(cell.text for cell in row[:first] if cell.text)
        yield from (Text(line, style="bold") for line in textwrap.wrap(names, width))
        for head, cell in zip(table.heads[first:], row[first:], strict=True):
            lines = wrapper.wrap(f"{head.text}: {cell.text}") if cell.text else []
            yield from (Text(line, style=_STYLES[cell.mark]) for line in lines)
