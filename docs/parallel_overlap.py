"""What is beside a kernel: the shares of the kernel alone that `longca_cp/benchmarks/overlap.py` found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from measured_page import bold, table

from longca.reports.run_cells import tokens

Row = dict[str, Any]

#: Strategies that have chunks of heads, and the one that is a ring and nothing else.
_SHOWN = ("ulysses", "ring_all_gather", "ring_p2p")


def overlap(records: Sequence[dict[str, Any]]) -> str:
    """A table a record, of which the one of more ranks comes first."""
    found = sorted(records, key=_ranks, reverse=True)
    return "\n\n".join(f"On {_ranks(record)} GPUs:\n\n{_table(record['rows'])}" for record in found)


def _ranks(record: dict[str, Any]) -> int:
    ranks: int = record["ranks"]
    return ranks


def _table(rows: Sequence[Row]) -> str:
    shown = sorted((row for row in rows if row.get("strategy") in _SHOWN), key=_place)
    columns = list(dict.fromkeys(_column(row) for row in rows))
    shares = {(row["strategy"], _way(row), *_column(row)): row["of_alone"] for row in shown}
    body = []
    for strategy, way in dict.fromkeys((row["strategy"], _way(row)) for row in shown):
        line = [f"`{strategy}`", way]
        for column in columns:
            share = shares.get((strategy, way, *column))
            best = max(value for key, value in shares.items() if key[0] == strategy and key[2:] == column)
            line.append("" if share is None else bold(f"{share:.2f}", share == best))
        body.append(line)
    heads = [f"`{mask}` {tokens(seqlen)}, {direction}" for mask, seqlen, direction in columns]
    return table(["strategy", "", *heads], body, left=(0, 1))


def _place(row: Row) -> tuple[int, int, bool]:
    return _SHOWN.index(row["strategy"]), row["chunks"] or 0, not row["beside"]


def _column(row: Row) -> tuple[str, int, str]:
    return row["mask"], row["seqlen"], row["direction"]


def _way(row: Row) -> str:
    """What was varied."""
    if row["chunks"] is None:
        return "transfers beside a step" if row["beside"] else "transfers before it"
    return "1 chunk" if row["chunks"] == 1 else f"{row['chunks']} chunks"
