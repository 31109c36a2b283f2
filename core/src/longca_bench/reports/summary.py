"""The summary of runs: results, strategies, cases without a time, and the number of cases by status."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.errors import RequestError
from longca_bench.reports.render_terminal import print_tables
from longca_bench.reports.run_source import unreached
from longca_bench.reports.text import safe
from longca_bench.reports.views import SUMMARY, VIEWS, tables
from longca_bench.reports.words import counted, status_counts

if TYPE_CHECKING:
    from rich.console import Console

    from longca_bench.reports.rows import Rows

__all__ = ["print_summary", "print_view"]


def print_summary(console: Console, rows: Rows) -> None:
    """Prints the summary of runs.

    Raises:
        RequestError: The rows are a benchmark's. A benchmark has no summary.
    """
    if "status" not in rows.names or "case" not in rows.names:
        raise RequestError(f"a benchmark's rows have no summary; name a view with --view: {', '.join(VIEWS)}")
    for name in SUMMARY:
        print_tables(console, tables(name, rows))
    console.print(safe(status_counts(rows["status"])))
    for sentence in unreached(rows.runs):
        console.print(safe(sentence), soft_wrap=True)


def print_view(console: Console, rows: Rows, name: str) -> None:
    """Prints the tables of a view."""
    found = tables(name, rows)
    print_tables(console, found)
    if not found:
        console.print(f"The view {safe(name)} has nothing to show of {counted(len(rows), 'row')}.")
