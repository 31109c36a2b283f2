"""The views by name. To add a view, add an entry to `VIEWS`: a `View`, or a function from rows to tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from longca.errors import UnknownNameError
from longca_bench.reports.build import tables_of
from longca_bench.reports.view import View
from longca_bench.reports.views_pairs import best_pair, measured_pairs
from longca_bench.reports.views_run import NOT_MEASURED, environment, results, strategies, whole
from longca_bench.reports.views_sparse import crossings
from longca_bench.reports.views_strategies import TRANSPORTS, fastest_strategies, strategy_shares
from longca_bench.reports.views_strategy_costs import STRATEGY_TIME, collectives, strategy_memory
from longca_bench.reports.views_throughput import COSTS, OVER_BASELINE, THROUGHPUT, near_limit

if TYPE_CHECKING:
    from longca_bench.reports.rows import Rows
    from longca_bench.reports.table import Table

__all__ = ["SUMMARY", "VIEWS", "tables"]

VIEWS: dict[str, View | Callable[[Rows], list[Table]]] = {
    "results": results,
    "strategies": strategies,
    "not-measured": NOT_MEASURED,
    "environment": environment,
    "throughput": THROUGHPUT,
    "over-baseline": OVER_BASELINE,
    "near-limit": near_limit,
    "best-pair": best_pair,
    "pairs": measured_pairs,
    "costs": COSTS,
    "crossings": crossings,
    "fastest-strategies": fastest_strategies,
    "strategy-shares": strategy_shares,
    "transports": TRANSPORTS,
    "strategy-time": STRATEGY_TIME,
    "strategy-memory": strategy_memory,
    "collectives": collectives,
    "whole": whole,
}
#: Views of strategies on one mask. They leave out the streams of masks of earlier versions.
_OF_ONE_MASK = frozenset(name for name in VIEWS if name.startswith("strategy-")) | {
    *("fastest-strategies", "transports", "collectives")
}
#: The views of a report that names none.
SUMMARY = ("results", "pairs", "strategies", "not-measured")


def tables(name: str, rows: Rows) -> list[Table]:
    """The tables of a view.

    Args:
        name: Name of the view.
        rows: The rows; narrow them with `rows.where(...)`.

    Raises:
        UnknownNameError: There is no such view. The message lists the views.
    """
    if name not in VIEWS:
        raise UnknownNameError("view", name, VIEWS)
    maker = VIEWS[name]
    if name in _OF_ONE_MASK:
        rows = rows.where(lambda found: found["direction"] != "step")
    return tables_of(maker, rows) if isinstance(maker, View) else maker(rows)
