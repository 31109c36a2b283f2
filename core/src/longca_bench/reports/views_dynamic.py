"""The view of streams of masks: a new mask at each training step, beside steps whose mask stays."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from longca_bench.reports.build import tables_of
from longca_bench.reports.view import Value, View

if TYPE_CHECKING:
    from pandas import Series

    from longca_bench.reports.rows import Rows
    from longca_bench.reports.table import Table

__all__ = ["dynamic"]

_ALONE = View(
    "steps of streams of masks: planned, prefetched and fixed",
    tables=("seqlen",),
    title="{seqlen} tokens, one device",
    rows=("mask", "kernel"),
    values=(
        Value("fixed_ms"),
        Value("prefetched_ms"),
        Value("prefetched_over_fixed"),
        Value("worst_prefetched"),
        Value("fresh_ms"),
        Value("fresh_over_fixed"),
        Value("alone_plan_ms"),
        Value("peak_gib"),
    ),
    failures=True,
)
_ON_RANKS = replace(
    _ALONE,
    tables=("world_size", "seqlen"),
    title="{seqlen} tokens, {world_size}",
    rows=("mask", "kernel", "strategy", "placed", "moved_by"),
    values=(*_ALONE.values, Value("area_imbalance"), Value("least_even")),
)


def dynamic(rows: Rows) -> list[Table]:
    """The steps of streams of masks: with plans that are there, with longca.prefetch, and with planning in the step."""
    streams = rows.where(direction="step")
    alone, on_ranks = streams.where(world_size=None), streams.where(_is_on_ranks)
    return [
        made
        for view, found in ((_ALONE, alone), (_ON_RANKS, on_ranks))
        if len(found)
        for made in tables_of(view, found)
    ]


def _is_on_ranks(rows: Rows) -> Series:
    return rows["world_size"].notna()
