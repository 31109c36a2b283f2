"""`longca doctor`: what this machine has and lacks, and how to get what it lacks."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from longca_bench.cli.options import AsJson, NoPlugin, open_registry, print_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from longca_bench.reports.machine import Finding

__all__ = ["doctor"]


def doctor(context: typer.Context, as_json: AsJson = False, no_plugin: NoPlugin = None) -> None:
    """Shows what this machine has and lacks, and which kernels can run on it."""
    from longca.manifests.devices import current_device
    from longca_bench.reports.capabilities import Question
    from longca_bench.reports.machine import find_kernels, find_machine, find_plugins, find_software

    registry = open_registry(context, no_plugin)
    found = {
        "machine": list(find_machine()),
        "software": list(find_software()),
        "plugins": list(find_plugins(registry)),
        "kernels": list(find_kernels(registry, Question(current_device()))),
    }
    if as_json:
        print_json({name: [asdict(finding) for finding in findings] for name, findings in found.items()})
        return
    from longca_bench.reports.text import console

    out = console()
    for name, findings in found.items():
        out.print(f"[bold]{name}[/]")
        out.print(_table(findings))
        out.print()


def _table(findings: Iterable[Finding]) -> Table:
    from rich.table import Table

    from longca_bench.reports.text import marks, safe

    yes, no, nothing = marks()
    shown = {True: f"[green]{yes}[/]", False: f"[red]{no}[/]", None: f"[dim]{nothing}[/]"}
    grid = Table.grid(padding=(0, 2, 0, 0))
    for finding in findings:
        advice = f"\n[yellow]{safe(finding.advice)}[/]" if finding.advice and not finding.ok else ""
        grid.add_row(f"  {shown[finding.ok]}", safe(finding.name), f"{safe(finding.found)}{advice}")
    return grid
