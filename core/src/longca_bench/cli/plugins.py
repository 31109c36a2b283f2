"""`longca plugins`: the distributions that extend LongCA, their kernels and strategies, and their problems."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from longca_bench.cli.options import AsJson, NoPlugin, open_registry, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from longca.plugins import PluginInfo

__all__ = ["plugins"]


def plugins(
    context: typer.Context,
    as_json: AsJson = False,
    no_plugin: NoPlugin = None,
) -> None:
    """Lists the plugins, their kernels and strategies, and their problems."""
    found = open_registry(context, no_plugin).plugins
    if as_json:
        print_json([{**asdict(plugin), "active": plugin.active} for plugin in found])
        return
    from longca_bench.reports.text import console

    out = console()
    for plugin in found:
        out.print(_describe(plugin))
        out.print()


def _describe(plugin: PluginInfo) -> Table:
    from rich.table import Table

    from longca_bench.reports.text import marks, safe

    yes, no, nothing = marks()
    mark = f"[dim]{nothing}[/]" if plugin.off else f"[red]{no}[/]" if plugin.problems else f"[green]{yes}[/]"
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_row(mark, f"[bold]{safe(plugin.distribution)}[/] {safe(plugin.version)}")
    grid.add_row("", f"entry point {safe(plugin.name)} = {safe(plugin.module)}")
    for what, names in (("kernels", plugin.kernels), ("strategies", plugin.strategies)):
        if names:
            grid.add_row("", f"{what}: {safe(', '.join(names))}")
    if plugin.off:
        grid.add_row("", f"[dim]off: {safe(plugin.off)}[/]")
    for problem in plugin.problems:
        grid.add_row("", f"[red]problem:[/] {safe(problem)}")
    for warning in plugin.warnings:
        grid.add_row("", f"[yellow]warning:[/] {safe(warning)}")
    return grid
