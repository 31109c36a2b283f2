"""Views of strategies against one another: the fastest of each mask, and shares of one GPU alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from longca_bench.reports.build import tables_of
from longca_bench.reports.strategy_times import by_problem, strategy_times
from longca_bench.reports.table import Cell, Head, Mark, Table
from longca_bench.reports.view import Value, View
from longca_bench.reports.words import times, tokens

if TYPE_CHECKING:
    from pandas import Series

    from longca_bench.reports.rows import Rows

__all__ = ["TRANSPORTS", "fastest_strategies", "strategy_shares"]

_CHOSEN = "•"  # the mark of the placement that `auto` took


def fastest_strategies(rows: Rows) -> list[Table]:
    """The fastest strategy for each mask in training, its share of one GPU alone, and the next strategy."""
    code = partial(Head, left=True, code=True)
    heads = (
        code("mask"), code("kernel"), Head("ranks"), Head("tokens"), code("fastest"),
        code("placement"), Head("of alone"), code("next"), code("placement"), Head("takes"),
    )  # fmt: skip
    made = []
    for found in by_problem(strategy_times(rows)):
        first = found.iloc[0]
        others = found[found["strategy"] != first["strategy"]]
        line = [
            Cell(first["mask"]), Cell(first["kernel"]), Cell(str(first["world_size"])), Cell(tokens(first["seqlen"])),
            Cell(first["way"]), Cell(first["placed"]),
            Cell(times(first["of_alone"]), float(first["of_alone"])) if first["of_alone"] > 0 else Cell("–"),
        ]  # fmt: skip
        if len(others):
            then = others.iloc[0]
            factor = float(then["seconds"] / first["seconds"])
            line += [Cell(then["way"]), Cell(then["placed"]), Cell(f"{factor:.2f}×", factor)]
        made.append((*line, *[Cell("")] * (len(heads) - len(line))))
    return [Table(heads, tuple(made))] if made else []


def _joined(texts: Sequence[str]) -> str:
    """Throughput, its share of one GPU alone, and whether `auto` took the placement."""
    speed, share, chosen = texts
    return speed + (f" ({share})" if share else "") + chosen


_SHARES = View(
    "TFLOP/s of each GPU by strategy and placement, and in brackets the share of one GPU alone",
    where={"condition": lambda rows: rows["strategy"].notna()},
    sort=("kernel", "world_size", "heads_q", "heads_kv", "seqlen", "strategy_place", "placed_place"),
    tables=("kernel", "seqlen", "world_size", "heads", "head_dim", "dtype"),
    title="{kernel}, {seqlen} tokens on {world_size}, {heads} heads of {head_dim}",
    rows=("way", "placed"),
    across=("mask", "direction"),
    values=(
        Value("tflops"),
        Value("of_alone"),
        Value("is_auto", "max", format=lambda chosen: f" {_CHOSEN}" if chosen else ""),
    ),
    best="most",
    among="column",
    join=_joined,
)
_PLACEMENTS = ("contiguous", "zigzag", "zigzag_document", "balanced", "whole_documents")
_LIMITS = {"one GPU alone": "alone_tflops", "all GPUs abreast": "abreast_tflops"}


def strategy_shares(rows: Rows) -> list[Table]:
    """TFLOP/s of each GPU by strategy and placement, and in brackets the share of one GPU alone."""
    rows = rows.with_column("is_auto", (rows.every["placement"] == "auto") & rows.every["placed"].notna())
    rows = rows.with_column("placed", rows.every["placed"].fillna(rows.every["placement"]))
    rows = rows.with_column("strategy_place", _places(rows.every["strategy"], ()))
    rows = rows.with_column("placed_place", _places(rows.every["placed"], _PLACEMENTS))
    found = tables_of(_SHARES, rows)
    for name, column in reversed(_LIMITS.items()):
        where = {**_SHARES.where, "status": "ok"}
        limits = replace(_SHARES, where=where, rows=("mesh",), values=(Value(column),), best=None, join="".join)
        lines = tables_of(limits, rows.with_column("mesh", rows.every["mesh"].map(lambda _: "")))
        by_title = {line.title: line for line in lines}  # a limit that was not measured has no table
        found = [_with_limit(each, name, by_title[each.title]) if each.title in by_title else each for each in found]
    return found


TRANSPORTS = View(
    "ms of each strategy by transport, with the share of one GPU alone and of communication that is hidden",
    where={"condition": lambda rows: rows["moved_by"].notna() & (rows["status"] == "ok")},
    tables=("kernel", "seqlen", "world_size", "heads", "head_dim", "dtype", "direction"),
    title="{kernel} {direction}, {seqlen} tokens on {world_size}, {heads} heads of {head_dim}",
    rows=("mask", "strategy", "mesh", "placed"),
    across=("moved",),
    values=(Value("ms"), Value("of_alone"), Value("hidden_share")),
    best="least",
    legend=True,
)


def _places(names: Series, first: Sequence[str]) -> Series:
    """The place of each name: that in a list, and behind the list in the order of measuring."""
    places = {name: place for place, name in enumerate(dict.fromkeys((*first, *names)))}
    return names.map(places.__getitem__)


def _with_limit(made: Table, name: str, limits: Table) -> Table:
    texts = {head.text: cell for head, cell in zip(limits.heads, limits.rows[0], strict=True)}
    cells = [replace(texts.get(head.text, Cell("")), mark=Mark.ASIDE) for head in made.heads[2:]]
    return made.with_row([Cell(name, mark=Mark.ASIDE), Cell(""), *cells], first=True)
