"""A view: a declaration of tables: their columns, their lines and their figures. `pivot.py` makes the tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from longca_bench.reports.columns import column

__all__ = ["Value", "View"]


@dataclass(frozen=True)
class Value:
    """A figure of a table.

    Attributes:
        column: The column that it is of.
        reduce: The reduction of the rows of one cell: `median`, `max`, `min`, `first`, `last`, `sum`, `count`, `range`
            or `each`, which lists every value once.
        head: Its head. Empty for the column's.
        format: Its format. None for the column's.
        missing: The text of an unknown value.
    """

    column: str
    reduce: str = "median"
    head: str = ""
    format: Callable[[Any], str] | None = None
    missing: str = ""

    def text(self, value: Any) -> str:
        """The text of a reduced value."""
        if value is None or value != value:
            return self.missing
        return (self.format or column(self.column).format)(value)


def _joined(texts: Sequence[str]) -> str:
    return " / ".join(texts)


@dataclass(frozen=True)
class View:
    """A declaration of tables.

    The measured rows of a cell are reduced to its figures. A cell without measured rows has the words for its
    statuses. A spread column and a line without any text are left out.

    Attributes:
        about: The content of the tables, for the list of views.
        rows: The columns that make a table's lines, and that stand before the figures.
        values: The figures: side by side, or joined in one cell where the view has `across`.
        tables: The columns that make tables: one table for each combination of their values.
        title: A table's title: a template of the columns of `tables`, such as `{direction}, {seqlen} tokens`.
        across: The columns whose values become columns.
        varying: Further columns of lines. They are shown where a table has several values of them.
        apart: Further columns that tell lines apart. They are never shown.
        beside: Figures of a whole line, before those of `values`.
        where: Conditions of `Rows.where` by column, or one function of rows under the key `condition`.
        sort: The columns that lines are sorted by. Empty for the order of measuring.
        best: Whether the highest or the lowest of the first figure is marked. None marks none.
        among: The cells that the best one competes with: its row, its column or its table.
        join: The function that makes one text of the figures of a cell.
        counts: The statuses of the rows that figures are made of. Empty for all rows. The first figure of a `suspect`
            row has a question mark.
        failures: Whether spread columns and lines are shown where nothing was measured and something failed.
        ordered: Whether spread columns stand in the order of their values, and not in that of measuring.
        winner: Whether the last column names the best of a row, and those whose intervals overlap with its own.
        mean: Whether the last line has the geometric mean of each column, with the number of its lines.
        absent: The text of a spread cell without rows.
        notes: Sentences below each table.
        legend: Whether the meaning of the heads stands below the last table.
    """

    about: str
    rows: tuple[str, ...]
    values: tuple[Value, ...]
    tables: tuple[str, ...] = ()
    title: str = ""
    across: tuple[str, ...] = ()
    varying: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    beside: tuple[Value, ...] = ()
    where: Mapping[str, Any] = field(default_factory=dict)
    sort: tuple[str, ...] = ()
    best: Literal["most", "least"] | None = None
    among: Literal["row", "column", "table"] = "row"
    join: Callable[[Sequence[str]], str] = _joined
    counts: tuple[str, ...] = ("ok",)
    failures: bool = False
    ordered: bool = False
    winner: bool = False
    mean: bool = False
    absent: str = ""
    notes: tuple[str, ...] = ()
    legend: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that tell the lines of a table apart."""
        return tuple(dict.fromkeys((*self.rows, *self.varying, *self.apart)))

    @property
    def columns(self) -> list[str]:
        """Every column that the tables are made of."""
        values = (value.column for value in (*self.values, *self.beside))
        bounds = ("low_ms", "high_ms") if self.winner else ()
        return list(dict.fromkeys((*self.keys, *self.tables, *self.across, *self.sort, *values, *bounds)))
