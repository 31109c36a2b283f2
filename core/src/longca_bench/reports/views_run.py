"""Views of whole runs: the results of kernels and of strategies, cases without a time, and environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from longca.plain_text import printable
from longca_bench.reports.build import tables_of
from longca_bench.reports.run_source import flatten
from longca_bench.reports.table import Cell, Head, Table, table
from longca_bench.reports.view import Value, View
from longca_bench.reports.words import three_digits, throughput_unit

if TYPE_CHECKING:
    from longca_bench.reports.rows import Rows

__all__ = ["NOT_MEASURED", "environment", "results", "strategies", "whole"]

_DOUBT = "? marks a time that is not believed. Such a time is never the fastest."
_HALVES = "+ stands before the backward of a kernel with the forwards of other kernels."
_FEW = 3  # names that are listed one by one


def few(names: Sequence[str]) -> str:
    """The first names, and the number of further names."""
    known = [name for name in dict.fromkeys(names) if isinstance(name, str)]
    return ", ".join(known if len(known) <= _FEW + 1 else [*known[:_FEW], f"{len(known) - _FEW} more"])


RESULTS = View(
    "ms and throughput by mask and kernel, with the fastest of each mask",
    where={"strategy": None},
    tables=("direction",),
    title="{direction}",
    rows=("mask", "seqlen"),
    varying=("heads", "head_dim", "dtype", "seed", "run"),
    apart=("mask_digest",),
    beside=(Value("density", "first"), Value("tile_efficiency", "first")),
    across=("kernel",),
    values=(Value("ms"), Value("tflops")),
    counts=("ok", "suspect"),
    failures=True,
    best="least",
    winner=True,
)
STRATEGIES = View(
    "ms, throughput and costs by strategy and placement, a table for each mask and direction",
    where={"condition": lambda rows: rows["strategy"].notna() & (rows["status"] != "unsupported")},
    tables=("mask", "direction", "seqlen", "world_size", "heads", "head_dim", "dtype", "mask_digest", "seed"),
    title="{mask} {direction}, {seqlen} tokens, {world_size}, {heads}×{head_dim} {dtype}",
    rows=("way", "placing", "kernel"),
    varying=("run",),
    apart=("run_number", "case"),
    values=tuple(
        Value(name, "first")
        for name in (
            "ms", "tflops", "of_alone", "hidden_share", "area_imbalance", "time_imbalance", "of_abreast", "busbw",
            "peak_gib", "error", "alone_error",
        )
    ),
    counts=("ok", "suspect"),
    failures=True,
    best="least",
    among="table",
    legend=True,
)  # fmt: skip
NOT_MEASURED = View(
    "each status that is not ok, with its cases and the reason",
    where={"condition": lambda rows: rows["status"] != "ok"},
    sort=("status_place",),
    rows=("status", "kernel"),
    apart=("alike",),
    values=(
        Value("way_placing", "each", format=few),
        Value("masks", "each", format=few),
        Value("case", "count", "cases"),
        Value("message", "first"),
        Value("advice", "first"),
    ),
    counts=(),
)


def results(rows: Rows) -> list[Table]:
    """ms and throughput by mask and kernel, with the fastest kernel of each mask. Many pairs share columns."""
    doubt = (_DOUBT,) if (rows["status"] == "suspect").any() else ()
    many = sum("+" in kernel for kernel in rows["kernel"].unique()) > _FEW
    notes, across = ((*doubt, _HALVES), ("half",)) if many else (doubt, RESULTS.across)
    return tables_of(replace(_with_unit(RESULTS, rows), notes=notes, across=across), rows)


def strategies(rows: Rows) -> list[Table]:
    """ms, throughput and costs by strategy and placement, a table for each mask and direction."""
    return tables_of(_with_unit(STRATEGIES, rows), rows)


def environment(rows: Rows) -> list[Table]:
    """The environments of runs: each fact, its value, and the runs with this value."""
    facts: dict[str, dict[str, list[str]]] = {}
    for run in rows.runs:
        for fact, value in flatten(run.environment or {}):
            facts.setdefault(fact, {}).setdefault(value, []).append(printable(run.folder.name))
    if not facts:
        return []
    every = len(rows.runs)
    body = [
        [fact, value, "all" if len(runs) == every else ", ".join(runs)]
        for fact, values in facts.items()
        for value, runs in values.items()
    ]
    heads = [Head("fact", left=True), Head("found", left=True, wrap=True), Head("runs", left=True, wrap=True)]
    shown = len(heads) if every > 1 else 2
    return [table(heads[:shown], [line[:shown] for line in body])]


def whole(rows: Rows) -> list[Table]:
    """Every record, with every field as a column."""
    from pandas import isna

    flat = rows.flat()
    body = tuple(
        tuple(Cell("") if isna(value) else Cell(str(value), value) for value in row)
        for row in flat.astype(object).itertuples(index=False, name=None)
    )
    return [Table(tuple(Head(name) for name in flat), body)]


def _with_unit(view: View, rows: Rows) -> View:
    """The view with throughput in GFLOP/s, if nothing reaches one TFLOP/s."""
    unit, by = throughput_unit(rows["tflops"].max())
    values = tuple(
        replace(each, head="per rank" if view is STRATEGIES else "", format=lambda value: three_digits(value * by))
        if each.column == "tflops"
        else each
        for each in view.values
    )
    return replace(view, values=values, title=f"{view.title}: ms and {unit}")
