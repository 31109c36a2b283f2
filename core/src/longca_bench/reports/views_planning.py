"""The view of what planning costs, from the rows of `core/benchmarks/planning.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from longca_bench.reports.build import tables_of
from longca_bench.reports.table import Cell, Mark, Table
from longca_bench.reports.view import Value, View
from longca_bench.reports.words import three_digits, tokens

if TYPE_CHECKING:
    from longca_bench.reports.rows import Rows

__all__ = ["planning"]

_FIELDS = (
    ("Milliseconds from slices to everything on the device", "seconds", 1e3),
    ("MiB of block lists", "list_bytes", 2.0**-20),
    ("MiB of everything else", "other_bytes", 2.0**-20),
    ("MiB of the plan", "metadata_bytes", 2.0**-20),
    ("MiB, the allocator's peak while planning", "peak_bytes", 2.0**-20),
    ("Seconds of the first call, which may compile", "first_seconds", 1.0),
)
#: Fields of a file that tells block lists from a plan's other bytes.
_TOLD_APART = ("seconds", "list_bytes", "other_bytes", "peak_bytes")
_VIEW = View(
    "what planning costs, by kernel and length",
    where={"status": "ok"},
    rows=("kernel",),
    across=("seqlen",),
    values=(Value("pattern", "count", format=str),),
    title="Masks that were planned",
    ordered=True,
)


def planning(rows: Rows, fields: Sequence[str] = _TOLD_APART) -> list[Table]:
    """What planning costs by kernel and length: time, bytes, and the number of masks.

    Args:
        rows: Rows of `core/benchmarks/planning.py` or `core/benchmarks/block_metadata.py`.
        fields: The fields to show.
    """
    made = []
    for title, field, by in _FIELDS:
        if field in fields and field in rows.names and rows[field].fillna(0).any():
            figure = Value(field, "max", format=partial(_scaled, by=by), missing="–")
            found = tables_of(_by_heads(replace(_VIEW, title=title, values=(figure,)), rows), rows)
            made += [_with_limits(each, rows) if field == "seconds" else each for each in found]
    return [*made, *(tables_of(_VIEW, rows) if "pattern" in rows.names else ())]


def _scaled(value: float, by: float) -> str:
    return three_digits(value * by)


def _by_heads(view: View, rows: Rows) -> View:
    """The view with a table for each kind of heads, where rows have several."""
    if "heads" not in rows.names or rows["heads"].nunique() < 2:
        return view
    return replace(view, tables=("heads",), title=f"{view.title}: {{heads}} heads")


def _with_limits(found: Table, rows: Rows) -> Table:
    """The table with the longest time that planning may take."""
    limits = {tokens(int(seqlen)): three_digits(limit) for seqlen, limit in rows.about.get("limits_ms", {}).items()}
    cells = [Cell(limits.get(head.text, ""), mark=Mark.ASIDE) for head in found.heads[1:]]
    return found.with_row([Cell("limit", mark=Mark.ASIDE), *cells]) if limits else found
