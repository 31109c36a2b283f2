"""A table for every renderer: heads, rows of cells, a title and notes. All text in it is plain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Cell", "Head", "Mark", "Table", "legend", "table"]


class Mark(Enum):
    """The mark of a cell. A renderer chooses the look."""

    NONE = ""
    BEST = "best"  # the best of those that it competes with: bold
    FAILED = "failed"  # no measurement: red in a terminal
    QUIET = "quiet"  # of no interest, such as a refused case: dim in a terminal
    ASIDE = "aside"  # a summary or a limit among measured rows: italic


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: the text for people, and the value for CSV and Parquet, or None such as for a failure.

    `brief` is a shorter text for narrow terminals, or empty. `busy` says that a busy machine disturbed its time.
    """

    text: str
    value: Any = None
    mark: Mark = Mark.NONE
    brief: str = ""
    busy: bool = False

    @property
    def plain(self) -> Any:
        """The value, or the text where there is no value."""
        return self.text if self.value is None else self.value


@dataclass(frozen=True)
class Head:
    """The head of a column.

    Attributes:
        left: Whether the column is text, which is aligned to the left.
        code: Whether Markdown shows the cells as code, as it does names of masks and kernels.
        code_head: Whether Markdown shows the head itself as code.
        wrap: Whether the cells are sentences, which may be broken over lines.
        about: A legend that stands below the tables. Empty without one.
        drop: The rank for leaving the column out of a narrow terminal: the highest first, and never 0.
    """

    text: str
    left: bool = False
    code: bool = False
    code_head: bool = False
    wrap: bool = False
    about: str = ""
    drop: int = 0


@dataclass(frozen=True)
class Table:
    """A table. Each row has a cell for each head. The title stands above, and notes below."""

    heads: tuple[Head, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    notes: tuple[str, ...] = ()

    def with_row(self, cells: Sequence[Cell | str]) -> Table:
        """The table with one more row, such as a mean."""
        row = tuple(Cell(cell, mark=Mark.ASIDE) if isinstance(cell, str) else cell for cell in cells)
        assert len(row) == len(self.heads), "a row has a cell for each head"
        return replace(self, rows=(*self.rows, row))

    def only(self, places: Sequence[int]) -> Table:
        """The table with some of its columns."""
        rows = tuple(tuple(row[place] for place in places) for row in self.rows)
        return replace(self, heads=tuple(self.heads[place] for place in places), rows=rows)

    @property
    def names(self) -> list[str]:
        """The heads' texts, told apart by numbers where two are alike."""
        texts = [head.text for head in self.heads]
        return [
            f"{text} {texts[:place].count(text) + 1}" if text in texts[:place] else text
            for place, text in enumerate(texts)
        ]

    @property
    def is_busy(self) -> bool:
        """Whether a busy machine disturbed a time."""
        return any(cell.busy for row in self.rows for cell in row)

    def as_json(self) -> dict[str, Any]:
        """The table as plain data. If the machine was busy, `busy` has the heads of the times that it disturbed."""
        rows = [dict(zip(self.names, (cell.plain for cell in row), strict=True)) for row in self.rows]
        if self.is_busy:
            rows = [{**line, "busy": self._busy(row)} for line, row in zip(rows, self.rows, strict=True)]
        return {"title": self.title, "rows": rows, "notes": list(self.notes)}

    def _busy(self, row: Sequence[Cell]) -> str:
        return ", ".join(name for name, cell in zip(self.names, row, strict=True) if cell.busy)

    def frame(self) -> DataFrame:
        """The values as a data frame. A title is its first column."""
        from pandas import DataFrame

        found = DataFrame([[cell.plain for cell in row] for row in self.rows], columns=self.names)
        if self.is_busy:
            found["busy"] = [self._busy(row) for row in self.rows]
        if self.title:
            found.insert(0, "table", self.title)
        return found


def legend(heads: Iterable[Head]) -> str:
    """The meaning of heads as one sentence. Empty if none needs it."""
    said = dict.fromkeys(f"{head.text}: {head.about}" for head in heads if head.about)
    return f"{'; '.join(said)}." if said else ""


def table(heads: Sequence[str | Head], rows: Sequence[Sequence[Cell | str]], **about: Any) -> Table:
    """A table from texts, with a title and notes. The first column is aligned to the left if its head is text."""
    made = tuple(Head(head, left=index == 0) if isinstance(head, str) else head for index, head in enumerate(heads))
    cells = tuple(tuple(Cell(cell) if isinstance(cell, str) else cell for cell in row) for row in rows)
    return Table(made, cells, **about)
