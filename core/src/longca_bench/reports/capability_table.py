"""Capabilities in a terminal: the matrix of kernels and patterns, the reasons below it, and one cell explained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rich.columns import Columns
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from longca.manifests import KernelManifest, Offer, Reason, StrategyManifest
from longca.manifests.verified import Standing
from longca_bench.reports.capabilities import HEAD_DIM, Cell, Question, Reach, installs
from longca_bench.reports.text import by_reason, marks, printable, safe

__all__ = ["Matrix", "abbreviations", "print_explanation", "print_matrix", "print_notes", "print_strategies"]

Matrix = Mapping[tuple[str, str], Sequence[Cell]]
"""The cells of each kernel and pattern, one for each direction listed."""

_STYLES = dict(zip(Reach, ("bold green", "cyan", "yellow", "dim", "red", "dim"), strict=True))


def abbreviations(patterns: Iterable[str]) -> dict[str, str]:
    """Three letters for each pattern: the initials of its words, filled up from the last word.

    If two patterns would have the same letters, a number replaces the last letter of the second.
    """
    short: dict[str, str] = {}
    for name in patterns:
        words = [word for word in name.split("_") if word][:3] or [name]
        letters = "".join(word[0] for word in words[:-1]) + words[-1]
        tries = (letters[:3], *(f"{letters[:2]}{number}" for number in range(2, 10)), name)
        short[name] = next(text for text in tries if text not in short.values())
    return short


def print_matrix(console: Console, kernels: Mapping[str, KernelManifest], patterns: list[str], matrix: Matrix) -> None:
    """Prints the matrix and its legend. A narrow terminal gets several tables."""
    short = abbreviations(patterns)
    names = max([len("kernel"), *(len(name) + 2 for name in kernels)]) + 1
    column = max(map(len, short.values())) + 1
    at_once = max(1, (console.width - names) // column)
    for start in range(0, len(patterns), at_once):
        console.print(_table(kernels, {name: short[name] for name in patterns[start : start + at_once]}, matrix, names))
        console.print()
    _print_legend(console)
    console.print()
    entries = [f"[bold]{safe(head)}[/] {safe(name)}" for name, head in short.items()]
    console.print(Columns(entries, padding=(0, 2), column_first=True))


def _table(kernels: Mapping[str, KernelManifest], heads: Mapping[str, str], matrix: Matrix, names: int) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("kernel", min_width=names - 1, no_wrap=True)
    for head in heads.values():
        table.add_column(Text(head), no_wrap=True)
    family = ""
    for name, manifest in kernels.items():
        if manifest.family != family:
            family = manifest.family
            table.add_row(Text(printable(family), "bold cyan"))
        table.add_row(f"  {safe(name)}", *(_symbol(matrix[name, pattern]) for pattern in heads))
    return table


def _symbol(cells: Sequence[Cell]) -> Text:
    """One cell: a letter for each direction. A mark follows if a package is missing, or on the offers' verification."""
    text = Text()
    for cell in cells:
        letter = cell.problem.direction[0]
        shown = {Reach.HERE: letter.upper(), Reach.OPTIONS: "x", Reach.NONE: ""}.get(cell.reach, letter)
        if not (shown == "x" and text.plain == "x"):
            text.append(shown, _STYLES[cell.reach])
    if any(cell.reach is Reach.PACKAGE for cell in cells):
        text.append("+", _STYLES[Reach.PACKAGE])
    if any(cell.reach is Reach.EXPECTED for cell in cells):
        text.append("?", _STYLES[Reach.EXPECTED])
    elif any(cell.standing is Standing.VERIFIED_HERE for cell in cells):
        text.append("*", _STYLES[Reach.HERE])
    return text if text.plain else Text(marks()[2], "dim")


def _print_legend(console: Console) -> None:
    more = {Reach.HERE: ", forward (F) and backward (B)", Reach.EXPECTED: " (see below)", Reach.PACKAGE: " (see below)"}
    legend = Table.grid(padding=(0, 2, 0, 0))
    for reach, symbol in zip(Reach, ("FB", "fb?", "fb+", "fb", "x", marks()[2]), strict=True):
        legend.add_row(Text(symbol, _STYLES[reach]), f"{reach.meaning}{more.get(reach, '')}")
        if reach is Reach.HERE:
            legend.add_row(Text("FB*", _STYLES[reach]), "runs here; it was verified on this machine alone")
    console.print(legend)


def print_notes(console: Console, kernels: Mapping[str, KernelManifest], matrix: Matrix, question: Question) -> None:
    """Prints the reasons against kernels, and the values that kernels need instead of the usual ones. Each once."""
    said: list[tuple[str, str]] = []
    commands: list[tuple[str, str]] = []
    for name in kernels:
        cells = [cell for (kernel, _), some in matrix.items() if kernel == name for cell in some]
        refused = [
            (reason, cell.problem.mask.label)
            for cell in cells
            if cell.reach not in (Reach.HERE, Reach.NONE)
            for reason in cell.verdict.reasons
        ]
        found = installs(reason for reason, _ in refused)
        commands += [(name, command) for command in found]
        where = _masks_of_devices(refused)
        for reason, _ in refused:
            sentence = str(replace(reason, advice="") if found else reason)
            said.append((f"{name}{where.get(reason, '')}", sentence.removeprefix(f"{name} ")))
        said += [(name, note) for note in _detours(cells, question)]
    for title, lines in (("", by_reason(said)), ("To install missing packages:", by_reason(commands))):
        if not lines:
            continue
        console.print(f"\n[bold]{title}[/]" if title else "")
        for line, names in lines.items():
            console.print(f"[bold]{safe(', '.join(names))}[/]")
            console.print(Padding(safe(line), (0, 0, 0, 2)))


def _masks_of_devices(refused: Iterable[tuple[Reason, str]]) -> dict[Reason, str]:
    """The masks of each reason against the device, in words, if a kernel runs different masks on different devices."""
    masks: dict[Reason, list[str]] = {}
    for reason, mask in refused:
        if reason.code == "device" and mask not in masks.setdefault(reason, []):
            masks[reason].append(mask)
    most = max(masks, key=lambda reason: len(masks[reason]), default=None)
    return {
        reason: f" ({'other masks' if reason == most else ', '.join(names)})"
        for reason, names in masks.items()
        if len(masks) > 1
    }


def print_strategies(console: Console, strategies: Mapping[str, StrategyManifest]) -> None:
    """Prints the context-parallel strategies with the axes of their meshes and their placements.

    The kernels of a strategy are not listed, because they depend on the mask and the mesh.
    """
    if not strategies:
        return
    console.print("\nContext-parallel strategies, with their mesh axes and placements:")
    for name, manifest in strategies.items():
        axes, placements = (safe(", ".join(names)) for names in (manifest.axes, manifest.placements))
        console.print(f"[bold]{safe(name)}[/] ({axes}): {placements}")


def _detours(cells: Iterable[Cell], question: Question) -> Iterable[str]:
    """The values that the question left open and that a kernel needs instead of the usual ones."""
    found: dict[str, list[str]] = {}
    problems = [cell.problem for cell in cells if cell.reach is not Reach.NONE]
    for problem in problems:
        if question.dtype is None and problem.dtype != "bfloat16":
            found.setdefault(f"{problem.dtype}, not bfloat16", []).append(problem.mask.label)
        if question.heads is None and not problem.is_gqa:
            found.setdefault("MHA, not GQA", []).append(problem.mask.label)
        if question.head_dim is None and problem.head_dim != HEAD_DIM:
            found.setdefault(f"head dimension {problem.head_dim}, not {HEAD_DIM}", []).append(problem.mask.label)
    for value, patterns in found.items():
        where = "" if len(patterns) == len(problems) else f", for {', '.join(dict.fromkeys(patterns))}"
        yield f"takes {value}{where}"


def print_explanation(
    console: Console,
    kernel: str,
    pattern: str,
    question: Question,
    cells: Sequence[Cell],
    alternatives: Mapping[str, Sequence[str]],
) -> None:
    """Prints the reasons why a kernel takes a pattern or not.

    Args:
        console: The console.
        kernel: The kernel's name.
        pattern: The pattern's name.
        question: The question.
        cells: One cell for each direction asked.
        alternatives: Other kernels that run the pattern here, by direction.
    """
    console.print(f"[bold]{safe(kernel)}[/] on [bold]{safe(pattern)}[/]")
    console.print(f"[dim]{safe(question.device)}\n{question.describe()}[/]\n")
    grid = Table.grid(padding=(0, 2, 0, 0))
    told: list[str] = []
    for cell in cells:
        direction = cell.problem.direction
        mark = marks()[0] if cell.reach is Reach.HERE else marks()[1]
        here = ", verified on this machine" if cell.standing is Standing.VERIFIED_HERE else ""
        grid.add_row(f"[bold]{direction}[/]", f"{mark} {cell.reach.meaning}{here}")
        details = _details(cell)
        again = "covered by the same offer" if cell.verdict.offer else "for the same reasons"
        for line in [again] if details == told else details:
            grid.add_row("", safe(line))
        told = details
        others = ", ".join(alternatives[direction]) or "no other kernel"
        grid.add_row("", f"[dim]{'also' if cell.reach is Reach.HERE else 'instead'}:[/] {safe(others)}")
    console.print(grid)


def _details(cell: Cell) -> list[str]:
    offer, problem = cell.verdict.offer, cell.problem
    if offer is None:
        return [str(reason) for reason in cell.verdict.reasons]
    heads = f"{problem.heads_q}:{problem.heads_kv} heads"
    asked = f"asked in {problem.dtype}, {heads}, head dimension {problem.head_dim}"
    return [asked, "covered by the offer:", *(f"  {line}" for line in describe_offer(offer))]


def describe_offer(offer: Offer) -> list[str]:
    """The lines that describe an offer."""
    most = f", at most {offer.most}" if offer.most else ""
    blocks = f", blocks of {', '.join(map(str, offer.block_sizes))}" if offer.block_sizes else ""
    dims = ", ".join(map(str, offer.head_dims)) if offer.head_dims else _dim_rule(offer)
    devices = [
        *(["CPU"] if offer.cpu else []),
        *([f"compute capability {offer.verified_on}"] if offer.verified_on else []),
        *([f"compute capability {offer.expected_on} (expected)"] if offer.expected_on else []),
    ]
    return [
        f"form {offer.form}{most}{blocks}, whose metadata grows as {offer.metadata}",
        f"dtypes {', '.join(offer.dtypes)}; head dimensions {dims}; {'GQA and MHA' if offer.gqa else 'MHA alone'}",
        f"on {' and '.join(devices)}; {'' if offer.deterministic else 'not '}deterministic",
        f"log-sum-exp of its backward: {offer.backward}",
    ]


def _dim_rule(offer: Offer) -> str:
    limit = f"up to {offer.max_head_dim}" if offer.max_head_dim else "of any size"
    return limit if offer.head_dim_multiple == 1 else f"{limit}, multiples of {offer.head_dim_multiple}"
