"""The view of block-sparse masks: the share of blocks below which sparsity pays."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from longca_bench.reports.columns import FULL_SPEED
from longca_bench.reports.table import Cell, Head, Mark, Table
from longca_bench.reports.words import tokens

if TYPE_CHECKING:
    from pandas import DataFrame

    from longca_bench.reports.rows import Rows

__all__ = ["crossings"]

#: The columns of a panel of curves.
_PANEL = ["direction", "seqlen", "heads", "block"]
_ALL = 0.999  # share from which no block is left out


def curves(rows: Rows) -> DataFrame:
    """Throughput by the share of visible pairs, with the time over that of dense attention in the same run.

    Args:
        rows: The records.

    Returns:
        The columns direction, seqlen, heads, block, kernel, density, tflops, time, and full: the throughput of dense
        attention. Panels in which no kernel has two shares are left out.
    """
    shape = ["run_number", "direction", "seqlen", "heads", "head_dim", "dtype"]
    ok = rows.where(status="ok", strategy=None)
    dense = ok.where(kernel=FULL_SPEED, pattern="full").frame((*shape, "ms", "tflops"))
    dense = dense.groupby(shape)[["ms", "tflops"]].median().rename(columns={"ms": "full_ms", "tflops": "full"})
    sparse = ok.where(lambda found: found["block"].notna()).frame(
        (*shape, "block", "kernel", "density", "ms", "tflops")
    )
    found = sparse.merge(dense.reset_index(), on=shape)
    found["time"] = found["ms"] / found["full_ms"]
    found["place"] = (found["direction"] != "forward").astype(int)
    keys = ["place", *_PANEL, "kernel", "density"]
    points = found.groupby(keys)[["tflops", "time", "full"]].median().reset_index()
    most = points.groupby([*_PANEL, "kernel"])["density"].transform("count")
    return points[most.groupby([points[name] for name in _PANEL]).transform("max") > 1]


def crossings(rows: Rows) -> list[Table]:
    """The share of blocks below which each kernel takes less time than dense attention, by direction and blocks.

    Args:
        rows: The records.
    """
    found = curves(rows)
    panels = list(dict.fromkeys(found[_PANEL].itertuples(index=False, name=None)))
    if not panels:
        return []
    kernels = list(dict.fromkeys(found["kernel"]))
    cells = {key: crossing(part) for key, part in found.groupby([*_PANEL, "kernel"], sort=False)}
    lines = tuple(
        (Cell(panel_words(panel)), *(Cell(cells.get((*panel, kernel), "")) for kernel in kernels), _reach(found, panel))
        for panel in panels
    )
    heads = Head("on", left=True), *(Head(kernel, code_head=True) for kernel in kernels), Head("measured")
    return [Table(heads, lines)]


def panel_words(panel: tuple[Any, ...]) -> str:
    """The name of a panel: its direction, length, heads and blocks."""
    direction, seqlen, heads, block = panel
    return f"{direction}, {tokens(seqlen)}, {heads}, blocks of {block:.0f}"


def crossing(curve: DataFrame) -> str:
    """The share below which a kernel takes less time than dense attention; linear between measured shares."""
    points = list(curve.sort_values("density")[["density", "time"]].itertuples(index=False, name=None))
    if points[0][1] >= 1:
        return f"not from {points[0][0]:.0%} on"
    for (low, before), (high, after) in pairwise(points):
        if after >= 1:
            return f"{low + (1 - before) / (after - before) * (high - low):.0%}"
    return "always" if points[-1][0] >= _ALL else f"above {points[-1][0]:.0%}"


def _reach(found: DataFrame, panel: tuple[Any, ...]) -> Cell:
    shares = found.set_index(_PANEL).loc[panel, "density"]
    return Cell(f"{shares.min():.0%} to {shares.max():.0%}", mark=Mark.ASIDE)
