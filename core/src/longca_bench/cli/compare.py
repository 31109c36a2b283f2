"""`longca compare`: two runs, case by case and as a whole."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated

import typer

from longca_bench.cli.options import AsJson, print_json, say_complaints

__all__ = ["compare"]


def compare(
    a: Annotated[Path, typer.Argument(help="A run's folder, or its records.jsonl.")],
    b: Annotated[Path, typer.Argument(help="The run to hold against it.")],
    force: Annotated[bool, typer.Option("--force", help="Compare runs made under unlike conditions.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compares two runs: median(A) / median(B) of each case with its interval. It is above 1 if B is faster."""
    from longca_bench.reports.comparison import compare_runs, comparison_json, print_comparison
    from longca_bench.reports.runs import open_run

    gc.disable()  # Records have no cycles. A search for cycles takes a third of the time of large runs.
    comparison = compare_runs(open_run(a), open_run(b), force=force)
    if as_json:
        print_json(comparison_json(comparison))
    else:
        from longca_bench.reports.text import console

        print_comparison(console(), comparison)
    say_complaints(comparison.complaints)
