"""The views by name. To add a view, add an entry to `VIEWS`: a `View`, or a function from rows to tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any

from longca.errors import RequestError, UnknownNameError
from longca_bench.reports.build import tables_of
from longca_bench.reports.view import View
from longca_bench.reports.views_benchmarks import ABLATION, LIST, STEPS, TRAINING_STEP, call_parts, layers
from longca_bench.reports.views_bounds import bounds
from longca_bench.reports.views_choices import choices
from longca_bench.reports.views_dynamic import dynamic
from longca_bench.reports.views_gaps import gaps, strategy_gaps
from longca_bench.reports.views_pairs import best_pair, measured_pairs
from longca_bench.reports.views_peers import overlap, peers
from longca_bench.reports.views_planning import planning
from longca_bench.reports.views_predictions import figures, problems, worst
from longca_bench.reports.views_published import published, small_blocks
from longca_bench.reports.views_run import NOT_MEASURED, environment, results, strategies, whole
from longca_bench.reports.views_sparse import FIRST_PLANS, contrast, crossings
from longca_bench.reports.views_strategies import (
    TRANSPORTS,
    auto_placements,
    fastest_strategies,
    strategy_pairs,
    strategy_ranking,
    strategy_shares,
)
from longca_bench.reports.views_strategy_costs import (
    STRATEGY_TIME,
    VERIFIED,
    collectives,
    strategy_errors,
    strategy_memory,
)
from longca_bench.reports.views_throughput import COSTS, THROUGHPUT, near_limit, over_baseline

if TYPE_CHECKING:
    from longca_bench.reports.rows import Rows
    from longca_bench.reports.table import Table

__all__ = ["SUMMARY", "VIEWS", "tables"]

VIEWS: dict[str, View | Callable[..., list[Table]]] = {
    "results": results,
    "strategies": strategies,
    "not-measured": NOT_MEASURED,
    "environment": environment,
    "throughput": THROUGHPUT,
    "over-baseline": over_baseline,
    "near-limit": near_limit,
    "best-pair": best_pair,
    "pairs": measured_pairs,
    "costs": COSTS,
    "planning": planning,
    "dynamic": dynamic,
    "ablation": ABLATION,
    "call-parts": call_parts,
    "layers": layers,
    "steps": STEPS,
    "training-step": TRAINING_STEP,
    "list": LIST,
    "contrast": contrast,
    "crossings": crossings,
    "first-plans": FIRST_PLANS,
    "gaps": gaps,
    "predictions": figures,
    "predictions-worst": worst,
    "predictions-problems": problems,
    "published": published,
    "published-small-blocks": small_blocks,
    "fastest-strategies": fastest_strategies,
    "strategy-pairs": strategy_pairs,
    "strategy-ranking": strategy_ranking,
    "strategy-shares": strategy_shares,
    "auto-placements": auto_placements,
    "choices": choices,
    "bounds": bounds,
    "transports": TRANSPORTS,
    "strategy-time": STRATEGY_TIME,
    "strategy-memory": strategy_memory,
    "strategy-errors": strategy_errors,
    "strategy-gaps": strategy_gaps,
    "collectives": collectives,
    "verified": VERIFIED,
    "peers": peers,
    "overlap": overlap,
    "whole": whole,
}
#: Views of strategies on one mask. Steps of a stream of masks have a view of their own.
_OF_ONE_MASK = frozenset(name for name in VIEWS if name.startswith("strategy-")) | {
    *("fastest-strategies", "auto-placements", "choices", "bounds", "transports", "collectives")
}
#: The views of a report that names none.
SUMMARY = ("results", "pairs", "strategies", "not-measured")


def tables(name: str, rows: Rows, /, **changes: Any) -> list[Table]:
    """The tables of a view.

    Args:
        name: Name of the view.
        rows: The rows; narrow them with `rows.where(...)`.
        **changes: Fields of the view to set otherwise, or arguments of its function.

    Raises:
        UnknownNameError: There is no such view. The message lists the views.
        RequestError: The view needs an argument that is not given.
    """
    if name not in VIEWS:
        raise UnknownNameError("view", name, VIEWS)
    maker = VIEWS[name]
    if name in _OF_ONE_MASK:
        rows = rows.where(lambda found: found["direction"] != "step")
    if isinstance(maker, View):
        view = replace(maker, **changes)
        if not view.rows:
            raise RequestError(
                f"the view {name!r} is for blocks of pages, which give its arguments: 'rows' and 'values'"
            )
        return tables_of(view, rows)
    try:
        signature(maker).bind(rows, **changes)
    except TypeError as error:
        raise RequestError(f"the view {name!r} is for blocks of pages, which give its arguments: {error}") from None
    return maker(rows, **changes)
