"""Drawing capabilities: the matrix of kernels and patterns, its legend, and what each kernel still needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from longca.manifests import KernelManifest, StrategyManifest
from longca_bench.reports.capabilities import HEAD_DIM, Cell, Question, Status
from longca_bench.reports.text import marks, printable, safe

__all__ = ["Matrix", "abbreviations", "print_matrix", "print_notes", "print_strategies"]

Matrix = Mapping[tuple[str, str], Sequence[Cell]]
"""The cells of each kernel and pattern, one for each direction listed."""

_STYLES = {Status.HERE: "bold green", Status.PACKAGE: "yellow", Status.DEVICE: "dim", Status.OPTIONS: "red"}


def abbreviations(patterns: Iterable[str]) -> dict[str, str]:
    """Three letters for each pattern: its words' initials, the last word giving more where there are fewer than three.

    A number takes the last letter's place where two patterns would have the same ones.
    """
    short: dict[str, str] = {}
    for name in patterns:
        words = [word for word in name.split("_") if word][:3] or [name]
        letters = "".join(word[0] for word in words[:-1]) + words[-1]
        tries = (letters[:3], *(f"{letters[:2]}{number}" for number in range(2, 10)), name)
        short[name] = next(text for text in tries if text not in short.values())
    return short


def print_matrix(console: Console, kernels: Mapping[str, KernelManifest], patterns: list[str], matrix: Matrix) -> None:
    """Prints the matrix, in several tables where the width does not do for one, and its legend."""
    names = max([len("kernel"), *(len(name) + 2 for name in kernels)]) + 1
    longest = max(len(word) for name in patterns for word in name.split("_"))
    wide = names + len(patterns) * (longest + 1) <= console.width
    short = abbreviations(patterns)
    heads = {name: printable(name).replace("_", "\n") if wide else short[name] for name in patterns}
    column = max(longest if wide else 0, *map(len, short.values())) + 1
    at_once = max(1, (console.width - names) // column)
    for start in range(0, len(patterns), at_once):
        shown = {name: heads[name] for name in patterns[start : start + at_once]}
        console.print(_table(kernels, shown, matrix, names, column))
        console.print()
    _print_legend(console)
    if not wide:
        console.print()
        _print_columns(console, short)


def _table(
    kernels: Mapping[str, KernelManifest], heads: Mapping[str, str], matrix: Matrix, names: int, column: int
) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    align: Literal["left", "center"] = "center" if any("\n" in head for head in heads.values()) else "left"
    table.add_column("kernel", min_width=names - 1, no_wrap=True, vertical="bottom")
    for head in heads.values():
        table.add_column(Text(head), min_width=column - 1, justify=align, vertical="bottom", no_wrap=True)
    family = ""
    for name, manifest in kernels.items():
        if manifest.family != family:
            family = manifest.family
            table.add_row(Text(printable(family), "bold cyan"))
        table.add_row(f"  {safe(name)}", *(_symbol(matrix[name, pattern]) for pattern in heads))
    return table


def _symbol(cells: Sequence[Cell]) -> Text:
    """One cell: a letter a direction, and a plus where a package is missing."""
    text = Text()
    for cell in cells:
        letter = cell.problem.direction[0]
        shown = {Status.HERE: letter.upper(), Status.OPTIONS: "x", Status.NONE: ""}.get(cell.status, letter)
        if not (shown == "x" and text.plain == "x"):
            text.append(shown, _STYLES.get(cell.status))
    if any(cell.status is Status.PACKAGE for cell in cells):
        text.append("+", _STYLES[Status.PACKAGE])
    return text if text.plain else Text(marks()[2], "dim")


def _print_legend(console: Console) -> None:
    entries = [
        (Text("FB", _STYLES[Status.HERE]), "forward and backward run on this device; F forward alone"),
        (Text("fb+", _STYLES[Status.PACKAGE]), "they would, once a package is installed (see below)"),
        (Text("fb", _STYLES[Status.DEVICE]), "they run on other devices, not on this one"),
        (Text("x", _STYLES[Status.OPTIONS]), "the mask is taken, but not with what was asked"),
        (Text(marks()[2], "dim"), "not offered"),
    ]
    legend = Table.grid(padding=(0, 2, 0, 0))
    for symbol, meaning in entries:
        legend.add_row(symbol, meaning)
    console.print(legend)


def _print_columns(console: Console, short: Mapping[str, str]) -> None:
    """The abbreviations, in columns that are read downwards."""
    entries = [f"[bold]{safe(head)}[/] {safe(name)}" for name, head in short.items()]
    across = max(1, min(3, console.width // 27))
    rows = -(-len(entries) // across)
    grid = Table.grid(padding=(0, 2, 0, 0))
    for row in range(rows):
        grid.add_row(*entries[row::rows])
    console.print(grid)


def print_notes(console: Console, kernels: Mapping[str, KernelManifest], matrix: Matrix, question: Question) -> None:
    """Prints what each kernel lacks and how to get it, and where it needed other values than the usual ones."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name in kernels:
        cells = [cell for (kernel, _), some in matrix.items() if kernel == name for cell in some]
        notes = [note.removeprefix(f"{name} ") for note in (*_lacks(cells), *_detours(cells, question))]
        for index, note in enumerate(dict.fromkeys(notes)):
            grid.add_row("" if index else f"[bold]{safe(name)}[/]", safe(note))
    if grid.row_count:
        console.print()
        console.print(grid)


def print_strategies(console: Console, strategies: Mapping[str, StrategyManifest]) -> None:
    """Prints the context-parallel strategies, if there are any: the axes of their meshes and their placements.

    Which kernels a strategy is valid with depends on the mask and the mesh, so that is not listed.
    """
    if not strategies:
        return
    console.print("\nContext-parallel strategies, with their mesh axes and placements:")
    for name, manifest in strategies.items():
        axes, placements = (safe(", ".join(names)) for names in (manifest.axes, manifest.placements))
        console.print(f"[bold]{safe(name)}[/] ({axes}): {placements}")


def _lacks(cells: Iterable[Cell]) -> Iterable[str]:
    for cell in cells:
        if cell.status not in (Status.HERE, Status.NONE):
            yield from map(str, cell.verdict.reasons)


def _detours(cells: Iterable[Cell], question: Question) -> Iterable[str]:
    """Where the question left a value open and the usual one would not have done."""
    found: dict[str, list[str]] = {}
    total = 0
    for cell in cells:
        if cell.status is Status.NONE:
            continue
        total += 1
        problem = cell.problem
        values = {
            f"{problem.dtype}, not bfloat16": question.dtype is None and problem.dtype != "bfloat16",
            "MHA, not GQA": question.heads is None and not problem.is_gqa,
            f"head dimension {problem.head_dim}, not {HEAD_DIM}": (
                question.head_dim is None and problem.head_dim != HEAD_DIM
            ),
        }
        for value in (value for value, unusual in values.items() if unusual):
            found.setdefault(value, []).append(problem.mask.label)
    for value, patterns in found.items():
        where = "" if len(patterns) == total else f", for {', '.join(dict.fromkeys(patterns))}"
        yield f"takes {value}{where}"
