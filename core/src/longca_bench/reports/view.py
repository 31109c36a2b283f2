"""Views: declarations of tables, and the tables that a view makes of rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any, Literal

from longca_bench.reports.columns import Column, column
from longca_bench.reports.table import Cell, Head, Mark, Table
from longca_bench.reports.winners import best_of
from longca_bench.reports.words import times, word

if TYPE_CHECKING:
    from pandas import DataFrame

    from longca_bench.reports.rows import Rows

__all__ = ["Value", "View", "tables_of"]

#: The columns of one draw of a mask in one run.
DRAW = ("run_number", "mask_digest", "seed")
#: A cell: the number of its line and that of its column.
Place = tuple[int, int]


@dataclass(frozen=True)
class Value:
    """A figure of a table: a column's values, reduced to one for each cell.

    Attributes:
        column: The column.
        reduce: `median`, `max`, `min`, `first`, `last`, `sum`, `size`, `nunique`, `range`, or `each`, which lists
            every value once.
        head: Its head. Empty for the column's.
        format: Its format. None for the column's.
    """

    column: str
    reduce: str = "median"
    head: str = ""
    format: Callable[[Any], str] | None = None

    def text(self, value: Any) -> str:
        """The text of a reduced value. An unknown one has none."""
        if value is None or value != value:
            return ""
        return (self.format or column(self.column).format)(value)


@dataclass(frozen=True)
class View:
    """A declaration of tables. A cell without measured rows has the words for its statuses.

    Attributes:
        rows: The columns that make a table's lines, and that stand before the figures.
        values: The figures: side by side, or joined in one cell where the view has `across`.
        tables: The columns that make tables: one table for each combination of their values.
        title: A table's title: a template of the columns of `tables`, such as `{direction}, {seqlen} tokens`.
        across: The columns whose values become columns.
        varying: Further columns of lines. They are shown where a table has several values of them.
        apart: Further columns that tell lines apart. They are never shown.
        beside: Figures of a whole line, before those of `values`.
        where: Conditions of `Rows.where` by column, or one function of rows under the key `condition`.
        sort: The columns that lines, tables and spread columns are sorted by. Empty for the order of measuring.
        best: Whether the highest or the lowest of the first figure is marked, as `winners.best_of` finds it. None marks
            none.
        among: The cells that the best one competes with: its row, or its column, which is the table without `across`.
        counts: The statuses of the rows that figures are made of. Empty for all rows. The first figure of a `suspect`
            row has a question mark, and that of a busy machine a tilde.
        failures: Whether spread columns and lines are shown where nothing was measured and something failed.
        winner: Whether the last column names the best of a row, and those whose intervals overlap with its own.
        mean: Whether the last line has the geometric mean of each column, with the number of its lines.
        legend: Whether the meaning of the heads stands below the last table.
        drawn: The column that a picture has. Empty for that of the first figure.
    """

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
    among: Literal["row", "column"] = "row"
    counts: tuple[str, ...] = ("ok",)
    failures: bool = False
    winner: bool = False
    mean: bool = False
    legend: bool = False
    drawn: str = ""

    @property
    def keys(self) -> list[str]:
        """The columns that tell the lines of a table apart."""
        return list(dict.fromkeys((*self.rows, *self.varying, *self.apart)))

    @property
    def figure(self) -> str:
        """The column that a picture has."""
        return self.drawn or self.values[0].column

    @property
    def columns(self) -> list[str]:
        """Every column that the tables are made of."""
        values = (value.column for value in (*self.values, *self.beside))
        bounds = ("low_ms", "high_ms") if self.winner else ()
        return list(dict.fromkeys((*self.keys, *self.tables, *self.across, *self.sort, *values, *bounds)))


def tables_of(view: View, rows: Rows) -> list[Table]:
    """The tables of a view. None has no row, so that the list may be empty."""
    chosen = rows.where(**view.where)
    return _Grid(view, chosen).tables() if len(chosen) else []


class _Grid:
    """The rows of a view in their cells, by the numbers of their line and spread column.

    Pandas groups all tables at once.
    """

    def __init__(self, view: View, rows: Rows) -> None:
        self.view = view
        frame = rows.frame(view.columns)
        frame["_status"], frame["_place"] = rows["status"], range(len(frame))
        frame["_draw"], frame["_busy"] = _numbers(rows.frame(DRAW), DRAW), rows["busy"] != ""
        frame = frame.sort_values(list(view.sort), kind="stable") if view.sort else frame
        frame["_table"] = _numbers(frame, view.tables)
        frame["_line"] = _numbers(frame, (*view.tables, *view.keys))
        counts = frame["_status"].isin(view.counts) if view.counts else frame["_status"].notna()
        shown = counts | (view.failures & (frame["_status"] != "unsupported"))
        in_order = frame if set(view.across) <= set(view.sort) else frame.sort_values("_place")
        frame["_column"] = _numbers(in_order[shown.reindex(in_order.index)], view.across)
        if view.across:  # rows that do not make a column be shown have its number too
            groups = frame.groupby(list(view.across), sort=False, dropna=False)
            frame["_column"] = groups["_column"].transform("first")
        self.frame = frame = frame[frame["_column"].notna()].astype({"_column": int}) if shown.any() else frame[:0]
        self.shown, counts = shown.reindex(frame.index), counts.reindex(frame.index)
        at = ["_line", "_column"]
        counted, is_ok = frame[counts].groupby(at), frame["_status"] == "ok"
        self.figures = [_reduced(counted, value) for value in view.values]
        self.beside = [_reduced(frame.groupby("_line"), value) for value in view.beside]
        self.measured, self.asked = counted.size().to_dict(), frame.groupby(at).size().to_dict()
        others = frame[~is_ok] if view.counts else frame[:0]
        self.statuses = others.groupby(at, sort=False)["_status"].unique().to_dict()
        busy = counts & frame["_busy"] & (bool(view.counts) and view.values[0].column != "peak_gib")
        self.busy = set(frame.loc[busy, at].itertuples(index=False, name=None))
        self.best = self._best(frame[is_ok])
        self.fastest = self._fastest(frame[is_ok]) if view.winner else {}

    def _best(self, sure: DataFrame) -> set[Place]:
        """The cells with the best first figure, where several were measured."""
        if self.view.best is None or sure.empty:
            return set()
        group, rival = (["_line"], "_column") if self.view.among == "row" else (["_table", "_column"], "_line")
        group += ["run_number"] * ("run_number" in self.view.keys)
        found = best_of(sure, group, rival, self.view.values[0].column, most=self.view.best == "most")
        return set(found[["_line", "_column"]].itertuples(index=False, name=None))

    def _fastest(self, sure: DataFrame) -> dict[int, list[int]]:
        """For each line with a best cell its column, and the columns whose intervals overlap with its own."""
        sure = sure[sure["_line"].isin({line for line, _ in self.best})]
        found = sure.groupby(["_line", "_column"])[["ms", "low_ms", "high_ms"]].median()
        found = found.dropna(subset=["ms"]).reset_index().sort_values(["_line", "ms"], kind="stable")
        reach = found.groupby("_line")["high_ms"].transform("first")
        near = (found["low_ms"] <= reach) | ~found.duplicated("_line")
        ties: dict[int, list[int]] = {}
        for line, place in found.loc[near, ["_line", "_column"]].itertuples(index=False, name=None):
            ties.setdefault(line, []).append(place)
        return ties

    def tables(self) -> list[Table]:
        """The tables that have a row."""
        view, frame = self.view, self.frame
        if frame.empty:
            return []
        # Rows of pandas are slow one by one, and a run of 100,000 records has thousands of tables.
        lines: dict[int, list[dict[str, Any]]] = {}
        names = ["_table", "_line", *view.keys, *view.tables]
        first = frame.drop_duplicates("_line").sort_values("_line", kind="stable")
        for line in first[list(dict.fromkeys(names))].to_dict("records"):
            lines.setdefault(line["_table"], []).append(line)
        columns: dict[int, dict[int, str]] = {}
        spread = frame[self.shown].drop_duplicates(["_table", "_column"]).sort_values("_column", kind="stable")
        formats = [column(name).format for name in view.across]
        for number, place, *values in spread[["_table", "_column", *view.across]].itertuples(index=False, name=None):
            words = (text(value) for text, value in zip(formats, values, strict=True))
            columns.setdefault(number, {})[place] = " ".join(words)
        several = frame.groupby("_table")[list(view.varying)].nunique(dropna=False) if view.varying else None
        counts = {} if several is None else several.to_dict("index")
        found = []
        for number, part in lines.items():
            if number in columns:
                varying = {name for name, count in counts.get(number, {}).items() if count > 1}
                found.append(self._table(part, columns[number], varying))
        return [each for each in found if each.rows]

    def _table(self, lines: Sequence[Mapping[str, Any]], names: Mapping[int, str], varying: Collection[str]) -> Table:
        view = self.view
        shown = [column(name) for name in view.keys if name in view.rows or name in varying]
        rows = []
        for about in lines:
            line = about["_line"]
            cells = list(self._spread_cells(line, names) if view.across else self._plain_cells(line))
            is_measured = view.failures or any((line, number) in self.measured for number in names)
            if is_measured and any(cell.text for cell in cells):
                first = [_cell(about[each.name], each.format) for each in shown]
                beside = zip(view.beside, self.beside, strict=True)
                rows.append((*first, *(_cell(found.get(line), value.text) for value, found in beside), *cells))
        heads = [
            *map(self._head, shown),
            *self._value_heads(view.beside),
            *(self._spread_heads(names) if view.across else self._value_heads(view.values)),
        ]
        texts = {name: _cell(lines[0][name], column(name).format).text for name in view.tables}
        made = Table(tuple(heads), tuple(rows), view.title.format_map(texts))
        made = made.only([place for place in range(len(heads)) if any(row[place].text for row in rows)])
        return _with_mean(made) if view.mean and rows else made

    def _plain_cells(self, line: int) -> Iterator[Cell]:
        """A cell for each figure. Without a measurement, the first cell has the words for the statuses."""
        place = line, 0
        if place not in self.measured:
            yield from [self._status(place), *[Cell("")] * (len(self.view.values) - 1)]
            return
        for number, (value, found) in enumerate(zip(self.view.values, self.figures, strict=True)):
            made = _cell(found.get(place), value.text)
            if number == 0:
                mark = Mark.BEST if place in self.best else Mark.NONE
                made = replace(made, text=made.text + self._doubt(place), mark=mark, busy=place in self.busy)
            yield made

    def _spread_cells(self, line: int, names: Mapping[int, str]) -> Iterator[Cell]:
        """A cell for each spread column with all figures joined, and the winner of the line."""
        for number in names:
            place = line, number
            count = self.measured.get(place, 0)
            if not count:
                yield self._status(place)
                continue
            found = [figure.get(place) for figure in self.figures]
            texts = [value.text(each) for value, each in zip(self.view.values, found, strict=True)]
            texts[0] += self._doubt(place)
            share = f" ({count} of {self.asked[place]})" if count < self.asked[place] else ""
            mark = Mark.BEST if place in self.best else Mark.NONE
            brief = texts[0] + share if len(texts) > 1 else ""
            yield Cell(" / ".join(texts) + share, _plain(found[0]), mark, brief, place in self.busy)
        if self.view.winner:
            yield Cell(" = ".join(names[number] for number in self.fastest.get(line, ())))

    def _doubt(self, place: Place) -> str:
        return "?" * ("suspect" in self.statuses.get(place, ())) + "~" * (place in self.busy)

    def _status(self, place: Place) -> Cell:
        statuses = self.statuses.get(place, ())
        quiet = set(statuses) <= {"unsupported", "skipped"}
        return Cell(" ".join(map(word, statuses)), mark=Mark.QUIET if quiet else Mark.FAILED)

    def _head(self, about: Column, text: str = "") -> Head:
        said = about.about if self.view.legend else ""
        text = text or about.head or about.name
        return Head(text, about.left, about.code, wrap=about.wrap, about=said, drop=about.drop)

    def _value_heads(self, values: Sequence[Value]) -> Iterator[Head]:
        return (self._head(column(value.column), value.head) for value in values)

    def _spread_heads(self, names: Mapping[int, str]) -> Iterator[Head]:
        code = len(self.view.across) == 1 and column(self.view.across[0]).code
        yield from (Head(name, code_head=code) for name in names.values())
        if self.view.winner:
            yield Head("fastest", left=True, drop=1)


def _numbers(frame: DataFrame, names: Sequence[str]) -> Any:
    """A number for each combination of values, in the order of the rows. Without names it is 0."""
    return frame.groupby(list(names), sort=False, dropna=False).ngroup() if names else 0


def _reduced(groups: Any, value: Value) -> dict[Any, Any]:
    """The reduced value of each group."""
    values = groups[value.column]
    if value.reduce == "range":
        low, high = values.min(), values.max()
        return dict(zip(low.index, zip(low, high, strict=True), strict=True))
    if value.reduce == "each":
        return {key: list(found) for key, found in values.unique().to_dict().items()}
    found: dict[Any, Any] = values.agg(value.reduce).to_dict()
    return found


def _cell(value: Any, text: Callable[[Any], str]) -> Cell:
    """A cell of a value. A missing value has no text."""
    return Cell("") if value is None or value != value else Cell(text(value), _plain(value))


def _plain(value: Any) -> Any:
    """A value for CSV and Parquet: one number or text without numpy's types, or None."""
    value = value.item() if hasattr(value, "item") else value
    return value if isinstance(value, int | float | str) else None


def _with_mean(made: Table) -> Table:
    """The table with the geometric mean of each column of numbers and the number of lines that it is of."""
    cells = [f"geometric mean ({made.heads[0].text}s)"]
    for _, *column_cells in list(zip(made.heads, *made.rows, strict=True))[1:]:
        found = [cell.value for cell in column_cells if cell.value]
        busy = "~" * any(cell.busy for cell in column_cells)
        cells.append(f"{times(geometric_mean(found))}{busy} ({len(found)})" if found else "")
    return made.with_row(cells)
