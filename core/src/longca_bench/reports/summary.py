"""The summary of runs: results, strategies, cases without a time, and the number of cases by status."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca_bench.reports.columns import column
from longca_bench.reports.render_terminal import print_tables
from longca_bench.reports.run_source import unreached
from longca_bench.reports.text import safe
from longca_bench.reports.view import View
from longca_bench.reports.views import SUMMARY, VIEWS, tables
from longca_bench.reports.words import counted, elsewhere_text, status_counts

if TYPE_CHECKING:
    from rich.console import Console

    from longca_bench.reports.rows import Rows

__all__ = ["print_summary", "print_view"]


def print_summary(console: Console, rows: Rows) -> None:
    """Prints the summary of runs. If other kernels run here, one line names those that run on other devices only."""
    apart = rows.where(elsewhere=True)
    here = rows.where(elsewhere=False) if len(apart) < len(rows) else rows
    for name in SUMMARY:
        print_tables(console, tables(name, here))
    console.print(safe(status_counts(here["status"])))
    if here is not rows and len(apart):
        console.print(safe(elsewhere_text(len(apart), apart["kernel"].unique())), soft_wrap=True)
    for sentence in unreached(rows.runs):
        console.print(safe(sentence), soft_wrap=True)


def print_view(console: Console, rows: Rows, name: str) -> None:
    """Prints the tables of a view. A line below says what the figures of spread columns are."""
    found, view = tables(name, rows), VIEWS[name]
    print_tables(console, found)
    if found and isinstance(view, View) and view.across:
        heads = (value.head or column(value.column).head or value.column for value in view.values)
        console.print(f"Each cell: {safe(' / '.join(heads))}")
    if not found:
        console.print(f"The view {safe(name)} has nothing to show of {counted(len(rows), 'row')}.")
