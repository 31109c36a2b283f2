"""Views of kernels against one another: throughput, ratios over a baseline, the share of the limit, and costs.

Kernels are compared on a draw, which is one mask of one run. Medians are taken over draws.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from longca_bench.reports.build import tables_of
from longca_bench.reports.columns import BASELINE, FULL_SPEED
from longca_bench.reports.derived import over_base, over_full
from longca_bench.reports.table import Cell, Head, Table
from longca_bench.reports.view import Value, View
from longca_bench.reports.words import percent_of, three_digits, tokens

if TYPE_CHECKING:
    from pandas import DataFrame

    from longca_bench.reports.rows import Rows

__all__ = ["COSTS", "THROUGHPUT", "near_limit", "over_baseline"]

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
    where={"strategy": None, "status": "ok", "first_plan": False},
    rows=("kernel",),
    across=("seqlen",),
    values=(Value("plan_ms"), Value("mask_mib", "max"), Value("peak_gib", "max", format=three_digits)),
    ordered=True,
    absent="–",
)


def over_baseline(rows: Rows, base: str = BASELINE) -> list[Table]:
    """Throughput over that of a baseline on the same mask in the same run, by mask and kernel."""
    if base != BASELINE:
        rows = rows.with_column("over_baseline", over_base(rows.every, base))
    view = replace(
        THROUGHPUT, title=f"{_TITLE}: over {base}", beside=(), values=(Value("over_baseline"),), mean=True, absent="–"
    )
    return tables_of(
        view, rows.where(lambda r: (r["kernel"] != base) & (r["over_baseline"].notna() | (r["status"] != "ok")))
    )


def near_limit(rows: Rows, base: str = FULL_SPEED, *, together: bool = False) -> list[Table]:
    """The fastest kernel of each mask, and its share of [the speed on full attention × the mask's tile efficiency].

    A name such as `+fa4` stands for the backward of `fa4` with the forwards of other kernels.

    Args:
        rows: The rows.
        base: The kernel or the pair that has the speed on full attention.
        together: Whether the runs of these rows are parts of one, and share full attention.
    """
    if base != FULL_SPEED or together:
        rows = rows.with_column("share_of_limit", over_full(rows if together else rows.every, base, together=together))
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
