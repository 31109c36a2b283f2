"""The views of pairs: the fastest single kernel and the fastest pair of each mask in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from longca_bench.reports.build import tables_of
from longca_bench.reports.training import COMBINED, PROBLEM
from longca_bench.reports.view import Value, View

if TYPE_CHECKING:
    from pandas import Series

    from longca_bench.reports.rows import Rows
    from longca_bench.reports.table import Table

__all__ = ["BEST_PAIR", "best_pair", "measured_pairs"]

_NOTE = (
    f"{COMBINED} This pair was not measured as one. Its time is combined: the medians of its first kernel's forward "
    "and of its second kernel's backward."
)


def names(found: Sequence[str | None]) -> str:
    """The names of the draws."""
    return ", ".join(name for name in found if isinstance(name, str))


def _has_choices(rows: Rows) -> Series:
    """The first record of each draw that was measured in both directions."""
    first = ~rows.frame(PROBLEM).duplicated()
    return first & (rows["single"].notna() | rows["pair"].notna())


BEST_PAIR = View(
    "the fastest single kernel and the fastest pair of each mask in training, and the gain, the medians over draws",
    where={"condition": _has_choices},
    sort=("heads_q", "heads_kv", "head_dim", "dtype", "seqlen", "pattern_place", "block", "kept"),
    tables=("heads", "head_dim", "dtype", "seqlen"),
    title="training, {seqlen} tokens, {heads} heads of {head_dim}",
    rows=("mask",),
    values=(
        Value("draw", "nunique", "draws"),
        Value("single", "each", format=names),
        Value("single_tflops"),
        Value("pair", "each", format=names),
        Value("pair_tflops"),
        Value("pair_gain"),
    ),
    counts=(),
)


def best_pair(rows: Rows) -> list[Table]:
    """The fastest single kernel and the fastest pair of each mask in training, measured or combined."""
    found = tables_of(BEST_PAIR, rows.where(strategy=None))
    if found and any(COMBINED in name for name in rows["pair"] if isinstance(name, str)):
        found[-1] = found[-1].with_notes(_NOTE)
    return found


def measured_pairs(rows: Rows) -> list[Table]:
    """The same as `best-pair`, if some pair was measured. Else nothing."""
    measured = rows.where(status="ok", strategy=None)["kernel"]
    return best_pair(rows) if any("+" in kernel for kernel in measured) else []
