"""What is beside a kernel: the shares of the kernel alone that `longca_cp/benchmarks/overlap.py` found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from measured_page import bold, table

from longca_bench.reports.run_cells import tokens

Row = dict[str, Any]
Column = tuple[str, int, str]

#: Strategies that have chunks of heads, and the one that is a ring and nothing else.
_SHOWN = ("ulysses", "ring_all_gather", "ring_p2p")


def overlap(records: Sequence[dict[str, Any]]) -> str:
    """A table a record, of which the one of more ranks comes first."""
    found = sorted(records, key=lambda record: record["ranks"], reverse=True)
    return "\n\n".join(f"On {record['ranks']} GPUs:\n\n{_table(record['rows'])}" for record in found)


def _table(rows: Sequence[Row]) -> str:
    columns = list(dict.fromkeys(_column(row) for row in rows))
    shares: dict[str, dict[str, dict[Column, float]]] = {}
    for row in sorted((row for row in rows if row.get("strategy") in _SHOWN), key=_place):
        shares.setdefault(row["strategy"], {}).setdefault(_way(row), {})[_column(row)] = row["of_alone"]
    body = []
    for strategy, ways in shares.items():
        best = {column: max(way.get(column, 0.0) for way in ways.values()) for column in columns}
        for way, found in ways.items():
            cells = (bold(f"{found[c]:.2f}", found[c] == best[c]) if c in found else "" for c in columns)
            body.append([f"`{strategy}`", way, *cells])
    heads = [f"`{mask}` {tokens(seqlen)}, {direction}" for mask, seqlen, direction in columns]
    return table(["strategy", "", *heads], body, left=(0, 1))


def _place(row: Row) -> tuple[int, int, bool]:
    return _SHOWN.index(row["strategy"]), row["chunks"] or 0, not row["beside"]


def _column(row: Row) -> Column:
    return row["mask"], row["seqlen"], row["direction"]


def _way(row: Row) -> str:
    """What was varied."""
    if row["chunks"] is None:
        return "transfers beside a step" if row["beside"] else "transfers before it"
    return "1 chunk" if row["chunks"] == 1 else f"{row['chunks']} chunks"
