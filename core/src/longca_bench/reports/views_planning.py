"""The view of what planning costs, from the rows of `core/benchmarks/planning.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from longca_bench.reports.build import tables_of
from longca_bench.reports.table import Cell, Mark, Table
from longca_bench.reports.view import Value, View
from longca_bench.reports.words import three_digits, tokens

if TYPE_CHECKING:
    from longca_bench.reports.rows import Rows

__all__ = ["planning"]

_FIELDS = (
    ("Milliseconds from slices to everything on the device, of the worst mask", "seconds", 1e3),
    ("MiB of block lists, of the worst mask", "list_bytes", 2.0**-20),
    ("MiB of everything else, of the worst mask", "other_bytes", 2.0**-20),
    ("MiB, the allocator's peak while planning, of the worst mask", "peak_bytes", 2.0**-20),
)
_VIEW = View(
    "what planning costs, by kernel and length",
    where={"status": "ok"},
    rows=("kernel",),
    across=("seqlen",),
    values=(Value("pattern", "count", format=str),),
    title="Masks that were planned",
    ordered=True,
)


def planning(rows: Rows) -> list[Table]:
    """What planning costs by kernel and length: time, bytes, and the number of masks."""
    made = []
    for title, field, by in _FIELDS:
        if field in rows.names and rows[field].fillna(0).any():
            figure = Value(field, "max", format=lambda value, by=by: three_digits(value * by), missing="–")
            (found,) = tables_of(replace(_VIEW, title=title, values=(figure,)), rows)
            made.append(_with_limits(found, rows) if field == "seconds" else found)
    return [*made, *tables_of(_VIEW, rows)]


def _with_limits(found: Table, rows: Rows) -> Table:
    """The table with the longest time that planning may take."""
    limits = {tokens(int(seqlen)): three_digits(limit) for seqlen, limit in rows.about.get("limits_ms", {}).items()}
    cells = [Cell(limits.get(head.text, ""), mark=Mark.ASIDE) for head in found.heads[1:]]
    return found.with_row([Cell("limit", mark=Mark.ASIDE), *cells]) if limits else found
