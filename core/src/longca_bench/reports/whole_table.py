"""Tables of which nothing is cut: where a terminal is too narrow, words wrap first, and then lines run on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.measure import Measurement

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["print_whole"]

_ENDLESS = 2**16


def print_whole(console: Console, table: Table) -> None:
    """Prints a table with its numbers and names whole.

    Args:
        console: Where to.
        table: The table; its columns that are not `no_wrap` give way where it is too wide, and no others do.
    """
    options = console.options.update(max_width=_ENDLESS)
    for column in table.columns:
        if column.no_wrap:
            column.min_width = max(Measurement.get(console, options, x).maximum for x in (column.header, *column.cells))
    needed = Measurement.get(console, options, table).minimum
    if needed > console.width:
        table.width = needed
    console.print(table, crop=False)
