"""Verification as a table: a kernel's offers down, the worst row of each beside PyTorch's own error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from longca_bench.reports.text import marks, safe
from longca_bench.reports.whole_table import print_whole

if TYPE_CHECKING:
    from rich.console import Console

    from longca_bench.conformance.offers import OfferCheck

__all__ = ["print_verification"]

_MOST_SHOWN = 3  # findings of an offer that are told in full; a kernel that is wrong everywhere has a hundred
_WIDE = 120  # columns from which each row's worst place is shown beside it


def print_verification(console: Console, kernel: str, checks: Sequence[OfferCheck]) -> None:
    """Prints a kernel's checks.

    Args:
        console: Where to.
        kernel: The kernel's name.
        checks: What was found of its offers.
    """
    yes, no, nothing = marks()
    wide = console.width >= _WIDE
    table = Table(title=safe(kernel), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for head in ("", "form", "dtype", "direction"):
        table.add_column(head, no_wrap=True)
    for head in ("masks", "error", "PyTorch's", "limit"):
        table.add_column(head, justify="right", no_wrap=True)
    if wide:
        table.add_column("worst at", overflow="fold")
    skipped: dict[str, list[str]] = {}
    for check in checks:
        if check.skipped:
            skipped.setdefault(check.skipped, []).append(f"{check.offer.form} {check.dtype} {check.direction}")
            continue
        mark = f"[green]{yes}[/]" if check.passed else f"[red]{no}[/]"
        *numbers, place = _worst(check)
        cells = (mark, check.offer.form, check.dtype, check.direction, str(len(check.masks)), *numbers)
        table.add_row(*cells, place) if wide else table.add_row(*cells)
    if table.row_count:
        print_whole(console, table)
    if not wide:
        _print_nearest(console, checks)
    for reason, rows in skipped.items():
        console.print(f"{nothing} {safe(kernel)}: {len(rows)} rows not verified here: {safe(reason)}", style="dim")
    for check in checks:
        _print_failures(console, check)


def _worst(check: OfferCheck) -> tuple[str, str, str, str]:
    if check.worst is None:
        return "", "", "", "raised"
    label, found = check.worst
    own = "" if math.isnan(found.pytorch) else f"{found.pytorch:.1e}"
    place = f"{found.tensor}, {_axis(found.tensor)} {found.token}, head {found.head}; {label}"
    return f"{found.error:.1e}", own, f"{found.limit:.1e}", safe(place)


def _print_nearest(console: Console, checks: Sequence[OfferCheck]) -> None:
    """Where the finding nearest to its limit is, of all offers."""
    found = [check for check in checks if check.worst is not None]
    if found:
        check = max(found, key=lambda c: c.worst[1].closeness if c.worst else 0.0)
        console.print(f"nearest to its limit: {check.offer.form} {check.dtype} {check.direction}, {_worst(check)[-1]}")


def _axis(tensor: str) -> str:
    return "key" if tensor.startswith(("dk", "dv")) else "query"


def _print_failures(console: Console, check: OfferCheck) -> None:
    name = f"{safe(check.kernel)} {check.offer.form} {check.dtype} {check.direction}"
    if check.error:
        console.print(f"[red]{name} raised on {safe(check.error)}[/]")
    for label, finding in check.failures[:_MOST_SHOWN]:
        console.print(f"[red]{name} is wrong[/] on {safe(label)}: {safe(finding)}")
    if len(check.failures) > _MOST_SHOWN:
        console.print(f"[red]{name}[/]: and {len(check.failures) - _MOST_SHOWN} more; --json has them all")
