"""Tables in a terminal of any width.

A table that is too wide is narrowed in steps, until it fits:

1. It leaves out columns, those with the highest `drop` first.
2. Cells show their first figure alone.
3. Spread columns become lines (`stacked`).
4. Each row becomes a list of lines, which are broken at the terminal's width.

A sentence takes at most a few lines of a row; a form in which it takes more does not fit. Sentences are not broken at
hyphens, so that a command can be copied. A row is never split over tables. A line below the table names the columns
that are left out.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Span, Text

from longca_bench.reports.table import Cell, Head, Mark, Table, legend
from longca_bench.reports.text import printable

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_tables", "stacked"]

_GAP, _LEAST = 2, 16  # columns between two columns of a table, and the least width of a column of sentences
_MOST = 4  # lines that a sentence may take in one row; a longer one stands better in a list
_FIRST_ALONE = "Each cell has its first figure alone."
_STYLES = {Mark.BEST: "bold green", Mark.FAILED: "red", Mark.QUIET: "dim", Mark.ASIDE: "italic", Mark.NONE: ""}


def print_tables(console: Console, tables: Iterable[Table]) -> None:
    """Prints tables one after another, each under its title, and last the meaning of their heads."""
    shown: list[Head] = []
    for table in tables:
        if table.title:
            console.print(Text(printable(table.title), style="bold"))
        sheet = _Sheet.of(table, console)
        for line in sheet.lines():
            console.print(line, soft_wrap=True, crop=False)
        for note in (*table.notes, *sheet.said()):
            console.print(Text(printable(note), style="dim"))
        console.print()
        shown += sheet.table.heads
    if said := legend(shown):
        console.print(Text(said, style="dim"))
        console.print()


def stacked(table: Table) -> Table:
    """The table with a line for each cell of its spread columns. A name that repeats is left out."""
    first = [place for place, head in enumerate(table.heads) if not head.across]
    across = [place for place, head in enumerate(table.heads) if head.across]
    about = [place for place in first if place < across[0]]
    heads = (*(table.heads[place] for place in about), Head("", left=True), Head(""))
    rows = []
    for row in table.rows:
        names: tuple[Cell, ...] = tuple(row[place] for place in about)
        for place in (place for place in across if row[place].text):
            rows.append((*names, Cell(table.heads[place].text), row[place]))
            names = (Cell(""),) * len(about)
    return replace(table, heads=heads, rows=tuple(rows))


@dataclass(frozen=True)
class _Sheet:
    """A table as it is printed.

    Attributes:
        table: The table, narrowed.
        widths: The width of each column. Empty if rows are lists.
        width: The terminal's width.
        remarks: Sentences about hidden columns.
        marked: Whether the best cells have a star, because the terminal has no colours.
    """

    table: Table
    widths: tuple[int, ...]
    width: int
    remarks: tuple[str, ...] = ()
    marked: bool = False

    @classmethod
    def of(cls, table: Table, console: Console) -> _Sheet:
        """The widest form of a table that fits."""
        marked = console.color_system is None
        shown = _printable(table, marked)
        for form, remarks in _forms(shown):
            if widths := _widths(form, console.width):
                return cls(form, widths, console.width, remarks, marked)
        return cls(shown, (), console.width, (), marked)

    def lines(self) -> Iterator[Text]:
        """The lines of the table."""
        if not self.widths:
            yield from _lists(self.table, self.width)
            return
        heads = tuple(Cell(head.text) for head in self.table.heads)
        yield from self._row(heads, "bold")
        yield Text("─" * (sum(self.widths) + _GAP * (len(self.widths) - 1)), style="dim")
        for row in self.table.rows:
            yield from self._row(row)

    def said(self) -> Iterator[str]:
        """The sentences below the lines."""
        if self.marked and any(cell.mark is Mark.BEST for row in self.table.rows for cell in row):
            yield "* the best"
        yield from self.remarks

    def _row(self, cells: Sequence[Cell], style: str = "") -> Iterator[Text]:
        """The lines of one row. A long sentence needs several."""
        parts = [
            textwrap.wrap(cell.text, width, break_on_hyphens=False) if cell_len(cell.text) > width else [cell.text]
            for cell, width in zip(cells, self.widths, strict=True)
        ]
        for number in range(max(map(len, parts))):
            texts, spans, end = [], [], 0
            for head, cell, width, lines in zip(self.table.heads, cells, self.widths, parts, strict=True):
                text = lines[number] if number < len(lines) else ""
                space = " " * (width - cell_len(text))
                texts.append(text + space if head.left else space + text)
                if look := style or _STYLES[cell.mark]:
                    spans.append(Span(end, end + len(texts[-1]), look))
                end += len(texts[-1]) + _GAP
            text = (" " * _GAP).join(texts).rstrip()
            yield Text(
                text,
                spans=[
                    Span(span.start, min(span.end, len(text)), span.style) for span in spans if span.start < len(text)
                ],
            )


def _printable(table: Table, marked: bool) -> Table:
    """The table with harmless text. A star marks the best if there is no colour."""

    def cell(given: Cell) -> Cell:
        if given.text.isalnum() and given.mark is not Mark.BEST and not given.brief:
            return given if given.text.isascii() else replace(given, text=printable(given.text))
        star = "*" if marked and given.mark is Mark.BEST else ""
        text, brief = printable(" ".join(given.text.split())), given.brief and printable(given.brief) + star
        return replace(given, text=text + star, brief=brief)

    heads = tuple(replace(head, text=printable(head.text)) for head in table.heads)
    return replace(table, heads=heads, rows=tuple(tuple(map(cell, row)) for row in table.rows))


def _forms(table: Table) -> Iterator[tuple[Table, tuple[str, ...]]]:
    """The forms of a table, the widest first, each with remarks on hidden columns."""
    order = sorted({head.drop for head in table.heads if head.drop}, reverse=True)
    yield table, ()
    for least in order:
        if least > 1:
            yield _without(table, least), _left_out(table, least)
    shorter = _brief(table)
    said = (_FIRST_ALONE,) if shorter != table else ()
    for least in order[-2:] if order else [1]:
        yield _without(shorter, least), (*said, *_left_out(table, least))
    if any(head.across for head in table.heads):
        yield stacked(table), ()
        for least in order:
            yield stacked(_without(table, least)), _left_out(table, least)


def _without(table: Table, least: int) -> Table:
    """The table without the columns whose `drop` is at least so high."""
    kept = [place for place, head in enumerate(table.heads) if head.drop < least]
    rows = tuple(tuple(row[place] for place in kept) for row in table.rows)
    return replace(table, heads=tuple(table.heads[place] for place in kept), rows=rows)


def _left_out(table: Table, least: int) -> tuple[str, ...]:
    names = ", ".join(head.text for head in table.heads if head.drop >= least)
    return (f"Left out in so narrow a terminal: {names}.",) if names else ()


def _brief(table: Table) -> Table:
    rows = tuple(tuple(replace(cell, text=cell.brief or cell.text) for cell in row) for row in table.rows)
    return replace(table, rows=rows)


def _widths(table: Table, width: int) -> tuple[int, ...]:
    """The width of each column, or nothing if they do not fit. Columns of sentences share the rest of the width."""
    columns = zip(table.heads, *table.rows, strict=True)
    wanted = [max(map(cell_len, (head.text, *(cell.text for cell in cells)))) for head, *cells in columns]
    sentences = [place for place, head in enumerate(table.heads) if head.wrap and wanted[place] > _LEAST]
    room = width - _GAP * (len(wanted) - 1) - sum(wanted) + sum(wanted[place] for place in sentences)
    for number, place in enumerate(sorted(sentences, key=wanted.__getitem__)):
        share = room // (len(sentences) - number)
        if share < min(wanted[place], _LEAST) or wanted[place] > _MOST * share:
            return ()
        wanted[place] = min(wanted[place], share)
        room -= wanted[place]
    return tuple(wanted) if room >= 0 else ()


def _lists(table: Table, width: int) -> Iterator[Text]:
    """Each row as lines: its first columns as a heading, and below each other column with its head."""
    for row in table.rows:
        cells = [(head, cell) for head, cell in zip(table.heads, row, strict=True) if cell.text]
        names = ", ".join(cell.text for head, cell in cells if head.left and not head.wrap) or cells[0][1].text
        yield from (Text(line, style="bold") for line in textwrap.wrap(names, width))
        for head, cell in cells:
            if head.wrap or not head.left:
                text = textwrap.wrap(
                    f"{head.text}: {cell.text}",
                    width,
                    initial_indent="  ",
                    subsequent_indent="    ",
                    break_on_hyphens=False,
                )
                yield from (Text(line, style=_STYLES[cell.mark]) for line in text)
