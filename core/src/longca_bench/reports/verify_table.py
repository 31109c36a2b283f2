"""The findings of `longca verify` in a terminal: the worst row of each offer beside PyTorch's own error."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from longca_bench.reports.table import Cell, Head, Mark, Table
from longca_bench.reports.terminal import print_tables
from longca_bench.reports.text import marks, safe

if TYPE_CHECKING:
    from rich.console import Console

    from longca.manifests import Device
    from longca_bench.conformance.offers import OfferCheck

__all__ = ["print_verification"]

_MOST_SHOWN = 3  # findings of an offer, because a kernel that is wrong everywhere has a hundred
_HEADS = (
    Head("", left=True),
    *(Head(name, left=True) for name in ("form", "dtype", "direction")),
    *(Head(name, drop=drop) for name, drop in (("masks", 2), ("error", 0), ("PyTorch's", 0), ("limit", 0))),
    Head("worst at", left=True, wrap=True, drop=3),
)


def print_verification(console: Console, kernel: str, checks: Sequence[OfferCheck], device: Device) -> None:
    """Prints the checks of a kernel's offers on a device."""
    verified = [check for check in checks if not check.skipped]
    if verified:
        print_tables(
            console, [Table(_HEADS, tuple(map(_row, verified)), f"{kernel} on {device}", tuple(_nearest(verified)))]
        )
    skipped: dict[str, list[OfferCheck]] = {}
    for check in checks:
        if check.skipped:
            skipped.setdefault(check.skipped, []).append(check)
    for reason, rows in skipped.items():
        said = f"{safe(kernel)}: {len(rows)} rows not verified here: {safe(reason)}"
        console.print(f"{marks()[2]} {said}", style="dim")
    for check in checks:
        _print_failures(console, check)


def _row(check: OfferCheck) -> tuple[Cell, ...]:
    yes, no, _ = marks()
    said = yes if check.passed else f"{no} {check.status.word}"
    figures = ["", "", ""]
    if check.worst is not None:
        found = check.worst[1]
        figures = ["" if math.isnan(each) else f"{each:.1e}" for each in (found.error, found.pytorch, found.limit)]
    form = f"{check.offer.form}{', soft cap' if check.offer.softcap else ''}"
    about = (said, form, check.dtype, str(check.direction), str(len(check.masks)))
    mark = Mark.NONE if check.passed else Mark.FAILED
    return tuple(Cell(text, mark=mark) for text in (*about, *figures, _place(check)))


def _place(check: OfferCheck) -> str:
    """The place of the worst row."""
    if check.worst is None:
        return ""
    label, found = check.worst
    axis = "key" if found.tensor.startswith(("dk", "dv")) else "query"
    return f"{found.tensor}, {axis} {found.token}, head {found.head}; {label}"


def _nearest(checks: Sequence[OfferCheck]) -> Iterator[str]:
    """The place of the finding that is nearest to its limit."""
    found = [(check.worst[1].closeness, check) for check in checks if check.worst is not None]
    if found:
        check = max(found, key=lambda pair: pair[0])[1]
        yield f"nearest to its limit: {check.offer.form} {check.dtype} {check.direction}, {_place(check)}"


def _print_failures(console: Console, check: OfferCheck) -> None:
    from longca_bench.conformance.failure_summary import failure_summary

    name = f"{safe(check.kernel)} {check.offer.form} {check.dtype} {check.direction}"
    for limit in check.limits:
        console.print(f"limit of {name}: it is wrong where {limit}", soft_wrap=True)
    if check.error:
        console.print(f"[red]{name}: {check.status} on {safe(check.error)}[/]")
    if check.wrong_calls:
        console.print(f"[red]{name} was wrong in {check.wrong_calls} of {check.calls} calls[/]")
    if said := failure_summary(check.cases):
        console.print(f"[red]{name} is {said}[/]")
    for label, finding in check.failures[:_MOST_SHOWN]:
        console.print(f"[red]{name} is wrong[/] on {safe(label)}: {safe(finding)}")
    if len(check.failures) > _MOST_SHOWN:
        console.print(f"[red]{name}[/]: and {len(check.failures) - _MOST_SHOWN} more; --json lists all of them")
