"""The tables of a view: lines of cells with texts, values and marks, under their heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from longca_bench.reports.columns import Column, column
from longca_bench.reports.pivot import Grid, Place, grid_of
from longca_bench.reports.table import Cell, Head, Mark, Table
from longca_bench.reports.words import times, word

if TYPE_CHECKING:
    from pandas import DataFrame

    from longca_bench.reports.rows import Rows
    from longca_bench.reports.view import Value, View

__all__ = ["tables_of"]


def tables_of(view: View, rows: Rows) -> list[Table]:
    """The tables of a view. None has no row, so that the list may be empty."""
    chosen = rows.where(**view.where)
    if not len(chosen):
        return []
    frame = chosen.frame(view.columns)
    frame["_status"] = chosen["status"] if "status" in chosen.names else "ok"
    frame["_place"] = range(len(frame))
    if view.sort:
        frame = frame.sort_values(list(view.sort), kind="stable")
    parts = frame.groupby(list(view.tables), sort=False, dropna=False) if view.tables else [((), frame)]
    return [made for key, part in parts if (made := _table(view, key, part)).rows]


def _table(view: View, key: tuple[Any, ...], part: DataFrame) -> Table:
    grid = grid_of(view, part)
    varying = [name for name in view.varying if part[name].nunique(dropna=False) > 1]
    shown = [name for name in view.keys if name in view.rows or name in varying]
    rows = []
    for line, about in enumerate(grid.lines[shown].itertuples(index=False, name=None)):
        cells = tuple(_spread_cells(view, grid, line) if view.across else _plain_cells(view, grid, line))
        if any(cell.text for cell in cells) and (view.failures or _is_measured(grid, line)):
            first = [_cell(value, column(name).format) for name, value in zip(shown, about, strict=True)]
            whole = zip(view.beside, grid.beside, strict=True)
            first += [_figure(value, found.get(line)) for value, found in whole]
            rows.append((*first, *cells))
    heads = [
        *(_head(view, column(name)) for name in shown),
        *(_value_head(view, value) for value in view.beside),
        *_figure_heads(view, grid),
    ]
    texts = {name: _cell(value, column(name).format).text for name, value in zip(view.tables, key, strict=True)}
    made = _without_empty(Table(tuple(heads), tuple(rows), view.title.format_map(texts), view.notes))
    return _with_mean(made) if view.mean and rows else made


def _plain_cells(view: View, grid: Grid, line: int) -> Iterator[Cell]:
    """A cell for each figure. Without a measurement, the first cell has the words for the statuses."""
    place = line, 0
    if not grid.measured.get(place):
        yield _words(grid, place)
        yield from [Cell("")] * (len(view.values) - 1)
        return
    for number, (value, found) in enumerate(zip(view.values, grid.figures, strict=True)):
        mark = Mark.BEST if number == 0 and place in grid.best else Mark.NONE
        made = _figure(value, found.get(place), mark)
        yield replace(made, text=f"{made.text}?") if number == 0 and _is_doubtful(grid, place) else made


def _spread_cells(view: View, grid: Grid, line: int) -> Iterator[Cell]:
    """A cell for each spread column with all figures joined, and the winner of the line."""
    for number in range(len(grid.spread)):
        place = line, number
        if not grid.measured.get(place):
            yield _words(grid, place) if place in grid.asked else Cell(view.absent)
            continue
        found = [figure.get(place) for figure in grid.figures]
        texts = [value.text(each) for value, each in zip(view.values, found, strict=True)]
        if _is_doubtful(grid, place):
            texts[0] += "?"
        share = f" ({grid.measured[place]} of {grid.asked[place]})" if grid.measured[place] < grid.asked[place] else ""
        mark = Mark.BEST if place in grid.best else Mark.NONE
        brief = texts[0] + share if len(texts) > 1 else ""
        yield Cell(view.join(texts) + share, _plain(found[0]), mark, brief)
    if view.winner:
        names = [_spread_text(view, grid.spread[number]) for number in grid.tied.get(line, ())]
        yield Cell(names[0] if len(names) == 1 else f"{' = '.join(names)}" if names else "")


def _is_doubtful(grid: Grid, place: Place) -> bool:
    return "suspect" in grid.words.get(place, ())


def _is_measured(grid: Grid, line: int) -> bool:
    return any(grid.measured.get((line, number)) for number in range(len(grid.spread)))


def _words(grid: Grid, place: Place) -> Cell:
    statuses = grid.words.get(place, ())
    quiet = set(statuses) <= {"unsupported", "skipped"}
    return Cell(" ".join(map(word, statuses)), mark=Mark.QUIET if quiet else Mark.FAILED)


def _cell(value: Any, text: Callable[[Any], str], missing: str = "", mark: Mark = Mark.NONE) -> Cell:
    """A cell of a value. A missing value has a text of its own."""
    if value is None or value != value:
        return Cell(missing, mark=mark)
    return Cell(text(value), _plain(value), mark)


def _figure(about: Value, value: Any, mark: Mark = Mark.NONE) -> Cell:
    return _cell(value, about.text, about.missing, mark)


def _plain(value: Any) -> Any:
    """A value for CSV and Parquet: one number or text without numpy's types, or None."""
    value = value.item() if hasattr(value, "item") else value
    return value if isinstance(value, int | float | str) else None


def _head(view: View, about: Column) -> Head:
    said = about.about if view.legend else ""
    return Head(about.head or about.name, about.left, about.code, wrap=about.wrap, about=said, drop=about.drop)


def _value_head(view: View, value: Value) -> Head:
    made = _head(view, column(value.column))
    return replace(made, text=value.head) if value.head else made


def _figure_heads(view: View, grid: Grid) -> Iterator[Head]:
    if not view.across:
        yield from (_value_head(view, value) for value in view.values)
        return
    code = len(view.across) == 1 and column(view.across[0]).code
    for values in grid.spread:
        yield Head(_spread_text(view, values), code_head=code, across=True)
    if view.winner:
        yield Head("fastest", left=True, drop=1)


def _spread_text(view: View, values: Sequence[Any]) -> str:
    return " ".join(column(name).format(value) for name, value in zip(view.across, values, strict=True))


def _without_empty(made: Table) -> Table:
    """The table without columns that have no text at all."""
    kept = [place for place in range(len(made.heads)) if any(row[place].text for row in made.rows)]
    rows = tuple(tuple(row[place] for place in kept) for row in made.rows)
    return replace(made, heads=tuple(made.heads[place] for place in kept), rows=rows)


def _with_mean(made: Table) -> Table:
    """The table with the geometric mean of each spread column and the number of lines that it is of."""
    cells = []
    for place, head in enumerate(made.heads):
        found = [row[place].value for row in made.rows if head.across and row[place].value]
        cells.append(f"{times(geometric_mean(found))} ({len(found)})" if found else "")
    return made.with_row([f"geometric mean ({made.heads[0].text}s)", *cells[1:]])
