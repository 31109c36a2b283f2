"""Views of kernels against one another: throughput, ratios over a baseline, the share of the limit, and costs.

Kernels are compared on a draw, which is one mask of one run. Medians are taken over draws.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from longca_bench.reports.columns import BASELINE
from longca_bench.reports.table import Cell, Head, Table
from longca_bench.reports.view import Value, View
from longca_bench.reports.words import percent_of, three_digits, tokens

if TYPE_CHECKING:
    from pandas import DataFrame

    from longca_bench.reports.rows import Rows

__all__ = ["COSTS", "OVER_BASELINE", "THROUGHPUT", "near_limit"]

_TITLE = "{direction}, {seqlen} tokens, {heads} heads of {head_dim}"


def percent_range(ends: tuple[float, float]) -> str:
    """A share, or the least and the greatest of several."""
    low, high = map(percent_of, ends)
    return low if low == high else f"{low.rstrip('%')}–{high}"


THROUGHPUT = View(
    "TFLOP/s by mask and kernel, the median over draws",
    where={"strategy": None},
    sort=("direction_place", "heads_q", "heads_kv", "head_dim", "dtype", "seqlen", "pattern_place", "block", "kept"),
    tables=("direction", "heads", "head_dim", "dtype", "seqlen"),
    title=_TITLE,
    rows=("mask",),
    beside=(Value("tile_efficiency", "range", format=percent_range), Value("draw", "nunique", "draws")),
    across=("half",),
    values=(Value("tflops"),),
    best="most",
)
COSTS = View(
    "planning in ms, the mask's bytes in MiB and the peak of memory in GiB, by kernel and length",
    where={"strategy": None, "status": "ok"},
    rows=("kernel",),
    across=("seqlen",),
    values=(Value("plan_ms"), Value("mask_mib", "max"), Value("peak_gib", "max", format=three_digits)),
    ordered=True,
    absent="–",
)


OVER_BASELINE = replace(
    THROUGHPUT,
    about="throughput over that of a baseline on the same mask in the same run, by mask and kernel",
    title=f"{_TITLE}: over {BASELINE}",
    where={
        "strategy": None,
        "condition": lambda rows: (
            (rows["kernel"] != BASELINE) & (rows["over_baseline"].notna() | (rows["status"] != "ok"))
        ),
    },
    beside=(),
    values=(Value("over_baseline"),),
    mean=True,
    absent="–",
)


def near_limit(rows: Rows) -> list[Table]:
    """The fastest kernel of each mask, and its share of [the speed on full attention × the mask's tile efficiency].

    A name such as `+fa4` stands for the backward of `fa4` with the forwards of other kernels.
    """
    chosen = rows.where(status="ok", strategy=None)
    frame = chosen.frame((*THROUGHPUT.columns, "share_of_limit")).sort_values(list(THROUGHPUT.sort), kind="stable")
    groups = list(THROUGHPUT.tables)
    frame = frame[frame["share_of_limit"].notna()]
    if frame.empty:
        return []
    medians = frame.groupby([*groups, "mask", "half"], sort=False)[["tflops", "share_of_limit"]].median().reset_index()
    best = medians.loc[medians.groupby([*groups, "mask"], sort=False)["tflops"].idxmax()]
    return [_limits(best, groups)]


def _limits(best: DataFrame, groups: list[str]) -> Table:
    shapes = best[groups].drop_duplicates()
    one_shape = len(shapes[["heads", "head_dim", "dtype"]].drop_duplicates()) == 1
    shown = {tuple(shape): _short_title(shape, one_shape) for shape in shapes.itertuples(index=False, name=None)}
    cells = {
        (*shape, mask): Cell(f"{kernel} {share:.0%}", share)
        for *shape, mask, kernel, _, share in best.itertuples(index=False, name=None)
    }
    masks = best["mask"].drop_duplicates()
    heads = (Head("mask", left=True, code=True), *(Head(title, across=True) for title in shown.values()))
    return Table(
        heads, tuple((Cell(mask, mask), *(cells.get((*shape, mask), Cell("")) for shape in shown)) for mask in masks)
    )


def _short_title(shape: tuple[str, str, int, str, int], one_shape: bool) -> str:
    direction, heads, head_dim, dtype, seqlen = shape
    return f"{direction}, {tokens(seqlen)}" + ("" if one_shape else f", {heads} heads of {head_dim}, {dtype}")
