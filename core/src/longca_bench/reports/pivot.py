"""The grid of a table: rows of a data frame in lines and spread columns, and the figures of each cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

    from longca_bench.reports.view import Value, View

__all__ = ["Grid", "Place", "grid_of", "reduced"]

#: A cell of a grid: the number of its line and that of its spread column.
Place = tuple[int, int]
_LINE, _SPREAD = "_line", "_spread"


@dataclass(frozen=True)
class Grid:
    """The rows of one table in their cells.

    Attributes:
        lines: For each line the values of the columns that tell lines apart.
        beside: For each figure of whole lines its value by line.
        spread: For each spread column the values of the view's `across`. Without any there is one empty tuple.
        figures: For each figure its value by cell. Only measured rows count.
        best: The cells whose first figure is the best.
        tied: The spread columns of each line that are the best or tie with it, the best first.
        measured: The number of measured rows by cell.
        asked: The number of rows by cell.
        words: The statuses of the other rows by cell.
    """

    lines: DataFrame
    beside: list[dict[int, Any]]
    spread: list[tuple[Any, ...]]
    figures: list[dict[Place, Any]]
    best: set[Place]
    tied: dict[int, list[int]]
    measured: dict[Place, int]
    asked: dict[Place, int]
    words: dict[Place, list[str]]


def grid_of(view: View, part: DataFrame) -> Grid:
    """The grid of a table.

    Args:
        view: The view.
        part: The table's rows, with `_status` and `_place`, their place in the order of measuring.
    """
    part = part.assign(**{_LINE: part.groupby(list(view.keys), sort=False, dropna=False).ngroup()})
    lines = part.drop_duplicates(_LINE)[list(view.keys)]
    beside = [by_line(reduced(part.groupby(_LINE), value)) for value in view.beside]
    counts = part["_status"].isin(view.counts) if view.counts else part["_status"].notna()
    spread, places = _spread(view, part, counts | (view.failures & (part["_status"] != "unsupported")))
    part = part.assign(**{_SPREAD: places})
    inside = part[_SPREAD] >= 0
    at = [_LINE, _SPREAD]
    sure, counted = part[inside & (part["_status"] == "ok")], part[inside & counts].groupby(at)
    others = part[inside & (part["_status"] != "ok") & bool(view.counts)].groupby(at, sort=False)
    return Grid(
        lines, beside, spread,
        [reduced(counted, value) for value in view.values],
        _best(view, sure),
        _tied(view, sure) if view.winner else {},
        counted.size().to_dict(),
        part[inside].groupby(at).size().to_dict(),
        {place: list(found) for place, found in others["_status"].unique().to_dict().items()},
    )  # fmt: skip


def by_line(found: dict[Any, Any]) -> dict[int, Any]:
    """Values by line, for any key of pandas."""
    return {key[0] if isinstance(key, tuple) else key: value for key, value in found.items()}


def reduced(groups: Any, value: Value) -> dict[Any, Any]:
    """The reduced value of each group.

    Args:
        groups: Rows grouped by pandas.
        value: The figure: its column and how it is reduced.
    """
    column = groups[value.column]
    if value.reduce == "range":
        low, high = column.min(), column.max()
        return dict(zip(low.index, zip(low, high, strict=True), strict=True))
    if value.reduce == "each":
        return {key: list(found) for key, found in column.unique().to_dict().items()}
    return column.agg({"count": "size"}.get(value.reduce, value.reduce)).to_dict()


def _spread(view: View, part: DataFrame, shown: Any) -> tuple[list[tuple[Any, ...]], Any]:
    """The spread columns, and the number of each row's column, which is -1 for a column that is not shown."""
    if not view.across:
        return [()], 0
    names = list(view.across)
    order = part[shown].sort_values(names if view.ordered else "_place")[names].drop_duplicates()
    spread = list(order.itertuples(index=False, name=None))
    places = {values: place for place, values in enumerate(spread)}
    return spread, [places.get(values, -1) for values in part[names].itertuples(index=False, name=None)]


def _best(view: View, sure: DataFrame) -> set[Place]:
    """The cells with the best first figure, where several were measured."""
    if view.best is None or sure.empty:
        return set()
    first = sure.groupby([_LINE, _SPREAD])[view.values[0].column].agg(view.values[0].reduce).dropna()
    among = {"row": first.index.get_level_values(0), "column": first.index.get_level_values(1)}
    groups = first.groupby(among.get(view.among, [0] * len(first)))
    best = first == groups.transform("max" if view.best == "most" else "min")
    return set(first.index[best & (groups.transform("count") > 1)])


def _tied(view: View, sure: DataFrame) -> dict[int, list[int]]:
    """The spread column of each line with the least time, and the columns whose intervals overlap with its own."""
    found = sure.groupby([_LINE, _SPREAD])[["ms", "low_ms", "high_ms"]].median().dropna(subset=["ms"]).reset_index()
    found = found.sort_values([_LINE, "ms"], kind="stable")
    reach = found.groupby(_LINE)["high_ms"].transform("first")
    near = (found["low_ms"] <= reach) | ~found.duplicated(_LINE)
    return found[near].groupby(_LINE)[_SPREAD].agg(list).to_dict()
