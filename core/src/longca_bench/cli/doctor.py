"""`longca doctor`: the state of this machine, and the commands that install missing packages."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longca_bench.cli.options import AsJson, NoPlugin, open_registry, print_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from longca_bench.reports.machine import Fact

__all__ = ["doctor"]


def doctor(
    context: typer.Context,
    no_timing: Annotated[
        bool, typer.Option("--no-timing", help="Time neither the same work twice nor copies between GPUs.")
    ] = False,
    as_json: AsJson = False,
    no_plugin: NoPlugin = None,
) -> None:
    """Shows the state of this machine: hardware, software, plugins, the kernels that run on it, and whether its times
    can be trusted.
    """
    from longca.manifests.devices import current_device
    from longca_bench.reports import machine
    from longca_bench.reports.capabilities import Question

    registry = open_registry(context, no_plugin)
    found = {
        "machine": list(machine.find_machine()),
        "software": list(machine.find_software()),
        "plugins": list(machine.find_plugins(registry)),
        "kernels": list(machine.find_kernels(registry, Question(current_device()))),
    }
    measured: dict[str, Any] = {}
    if not no_timing:
        typer.echo("timing the same work twice, which takes 10 to 20 seconds; --no-timing leaves it out", err=True)
        found["timing"], times = machine.measure_timing()
        found["peers"], copies = machine.measure_peers()
        measured = times | copies
    if as_json:
        print_json({**{name: [asdict(fact) for fact in facts] for name, facts in found.items()}, **measured})
        return
    from longca_bench.reports.text import by_reason, console, safe

    out = console()
    for name, facts in found.items():
        out.print(f"[bold]{name}[/]")
        out.print(_table(facts))
        out.print()
    commands = by_reason((fact.name, command) for fact in found["kernels"] for command in fact.install)
    if commands:
        out.print("[bold]to install missing packages[/]")
    for command, kernels in commands.items():
        out.print(f"  [yellow]{safe(command)}[/]", soft_wrap=True)
        out.print(f"    brings {safe(', '.join(kernels))}")


def _table(facts: Iterable[Fact]) -> Table:
    from rich.table import Table

    from longca_bench.reports.text import marks, safe

    yes, no, nothing = marks()
    shown = {True: f"[green]{yes}[/]", False: f"[red]{no}[/]", None: f"[dim]{nothing}[/]"}
    grid = Table.grid(padding=(0, 2, 0, 0))
    for fact in facts:
        # The commands of kernels follow once, below.
        advice = f"\n[yellow]{safe(fact.advice)}[/]" if fact.advice and not fact.ok and not fact.install else ""
        grid.add_row(f"  {shown[fact.ok]}", safe(fact.name), f"{safe(fact.found)}{advice}")
    return grid
