"""Where fa4's time goes on heterogeneous masks, and what layers take beside it: tables of two benchmarks' records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from measured_page import bold, table

from longca_bench.reports.run_cells import three_digits, tokens

_COSTS = ("cut", "uneven", "short")
_DIRECTIONS = ("forward", "backward")

Row = dict[str, Any]


def profile(rows: Sequence[Row]) -> str:
    """A row a draw: its tiles' efficiency, and in both directions the factor that each thing adds to the time."""
    body = []
    for row in rows:
        costs = [row[direction][cost] for direction in _DIRECTIONS for cost in _COSTS]
        half = len(_COSTS)
        most = [max(costs[:half])] * half + [max(costs[half:])] * half
        cells = (bold(f"{cost:.2f}", cost == worst) for cost, worst in zip(costs, most, strict=True))
        body.append([f"`{row['pattern']}`", tokens(row["seqlen"]), f"{row['tile_efficiency']:.0%}", *cells])
    heads = [f"{direction}: {cost}" for direction in _DIRECTIONS for cost in _COSTS]
    return table(["mask", "tokens", "tiles", *heads], body)


def layers(rows: Sequence[Row]) -> str:
    """A row a draw: how many layers it is, fa4's milliseconds, and the time of layers over them."""
    others = [name for name in rows[0]["kernels"] if name != "fa4"]
    body = []
    for row in rows:
        own = row["kernels"]["fa4"]
        times = [three_digits(own[f"{direction}_ms"]) for direction in _DIRECTIONS]
        ratios = (
            f"{row['kernels'][name][f'{direction}_ms'] / own[f'{direction}_ms']:.2f}"
            for name in others
            for direction in _DIRECTIONS
        )
        body.append([f"`{row['pattern']}`", tokens(row["seqlen"]), str(row["layers"]), *times, *ratios])
    heads = [f"`{name}` {direction}" for name in others for direction in _DIRECTIONS]
    return table(["mask", "tokens", "layers", "`fa4` forward, ms", "backward, ms", *heads], body)
