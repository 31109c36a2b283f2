"""Capabilities: whether each kernel runs each mask pattern on a device, the reasons if not, and their matrix.

A question may leave the data type, the heads and the head dimension open. The usual value is tried first, then the
others. The cell names the value that works.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from itertools import product
from typing import Any

from rich.columns import Columns
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from longca.manifests import Device, KernelManifest, Problem, Reason, StrategyManifest, Verdict
from longca.manifests.offers import DType
from longca.manifests.problem import Direction
from longca.manifests.verified import Standing, standing
from longca.masks import Pattern
from longca.plain_text import dims_text
from longca.plugins import Registry
from longca_bench.reports.text import by_reason, marks, printable, safe

__all__ = [
    "GQA",
    "MHA",
    "Cell",
    "Matrix",
    "Question",
    "Reach",
    "examine",
    "installs",
    "print_explanation",
    "print_matrix",
    "print_notes",
    "print_strategies",
]

GQA, MHA = (64, 8), (8, 8)
HEAD_DIM, OTHER_HEAD_DIM = 128, 64
_INSTALL = "Install it: "  # the beginning of the advice for a missing package
_DTYPES: tuple[DType, ...] = ("bfloat16", "float16", "float32", "float64")


class Reach(StrEnum):
    """The distance of a kernel from running a problem. The first is the nearest."""

    meaning: str
    distance: int

    def __new__(cls, value: str, meaning: str) -> Reach:
        """A member with its meaning, in words whose subject is the kernel."""
        member = str.__new__(cls, value)
        member._value_, member.meaning, member.distance = value, meaning, len(cls.__members__)
        return member

    HERE = "here", "runs here"
    EXPECTED = "expected", "should run here; nobody verified it on such a device"
    PACKAGE = "package", "would run here; a package is missing"
    DEVICE = "device", "runs on other devices, not on this one"
    OPTIONS = "options", "takes the mask, but not with these heads, dtype or head dimension"
    NONE = "none", "not offered"


@dataclass(frozen=True)
class Question:
    """The question for every kernel and pattern: a device, and other values. None leaves a value open."""

    device: Device
    dtype: DType | None = None
    heads: tuple[int, int] | None = None
    head_dim: int | None = None
    head_dim_v: int | None = None

    def describe(self) -> str:
        """The question in a few words, without the device."""
        heads = f"{self.heads[0]}:{self.heads[1]} heads" if self.heads else "heads 64:8, else 8:8"
        dim = f"{HEAD_DIM}, else {OTHER_HEAD_DIM}"
        dim = dim if self.head_dim is None else dims_text(self.head_dim, self.head_dim_v)
        return f"{self.dtype or 'bfloat16, else any dtype'}; {heads}; head dimension {dim}"

    def problem(self, pattern: Pattern, direction: Direction) -> Problem:
        """The problem, with the usual value for each open one."""
        heads_q, heads_kv = self.heads or GQA
        return Problem(
            mask=pattern,
            heads_q=heads_q,
            heads_kv=heads_kv,
            head_dim=HEAD_DIM if self.head_dim is None else self.head_dim,
            head_dim_v=self.head_dim_v,
            dtype=self.dtype or "bfloat16",
            device=self.device,
            direction=direction,
        )

    def variants(self, problem: Problem, codes: set[str]) -> Iterator[Problem]:
        """The problem with all values for each open one that the codes of some reasons are about."""
        dtypes = _DTYPES if self.dtype is None and "dtype" in codes else (problem.dtype,)
        heads = (GQA, MHA) if self.heads is None and "gqa" in codes else ((problem.heads_q, problem.num_heads_kv),)
        dims = (HEAD_DIM, OTHER_HEAD_DIM) if self.head_dim is None and "head_dim" in codes else (problem.head_dim,)
        for dtype, (heads_q, heads_kv), head_dim in product(dtypes, heads, dims):
            yield replace(problem, dtype=dtype, heads_q=heads_q, heads_kv=heads_kv, head_dim=head_dim)


@dataclass(frozen=True)
class Cell:
    """One kernel, one pattern, one direction: the last problem that was asked, and the verdict on it."""

    reach: Reach
    problem: Problem
    verdict: Verdict

    @property
    def standing(self) -> Standing | None:
        """The standing of the offer that covers the problem on the device, or None without one."""
        offer = self.verdict.offer
        return standing(self.verdict.kernel, offer, self.problem.device) if offer else None

    def as_json(self) -> dict[str, Any]:
        """The cell as plain data."""
        problem, offer, found = self.problem, self.verdict.offer, self.standing
        return {
            "kernel": self.verdict.kernel,
            "pattern": problem.mask.label,
            "direction": problem.direction,
            "status": str(self.reach),
            "verified": str(found) if found else None,
            "dtype": problem.dtype,
            "heads_q": problem.heads_q,
            "heads_kv": problem.heads_kv,
            "head_dim": problem.head_dim,
            "head_dim_v": problem.head_dim_v,
            "form": str(offer.form) if offer else None,
            "reasons": [vars(reason) for reason in self.verdict.reasons],
        }


def examine(registry: Registry, kernel: str, pattern: Pattern, direction: Direction, question: Question) -> Cell:
    """The cell of a kernel, a pattern and a direction.

    Each offer is asked alone, because the offer nearest to the problem is not always the nearest to running. A
    forward-only offer for this device says less than a full offer for another device. However, if an offer for this
    kind of device fails only on the question's values, an offer for another kind of device is no answer.
    """
    problem = question.problem(pattern, direction)
    best = _ask(registry, kernel, problem, question)
    vetoed = any(reason.code == "plugin" for reason in best.verdict.reasons)
    if best.reach is Reach.HERE or vetoed:
        return best
    for alone in _offers_apart(registry.manifest(kernel), question.device.kind):
        only_values = all(reason.code != "device" for reason in best.verdict.reasons)
        # Offers for other kinds of device come last, and are no nearer than one for another device of this kind.
        is_answered = (best.reach is Reach.OPTIONS and only_values) or best.reach.distance <= Reach.DEVICE.distance
        if is_answered and not alone.offers[0].runs_on(question.device.kind):
            break
        cell = _ask(registry, alone, problem, question)
        if cell.reach is Reach.HERE:
            # The plugin's veto applies to the kernel itself alone.
            cell = _cell(cell.problem, registry.resolve(kernel, cell.problem))
        if cell.reach.distance < best.reach.distance:
            best = cell
    return best


def _ask(registry: Registry, kernel: str | KernelManifest, problem: Problem, question: Question) -> Cell:
    best = _cell(problem, registry.resolve(kernel, problem))
    if best.reach in (Reach.HERE, Reach.NONE):
        return best
    codes = {reason.code for reason in best.verdict.reasons}
    for variant in question.variants(problem, codes):
        cell = _cell(variant, registry.resolve(kernel, variant))
        if cell.reach.distance < best.reach.distance:
            best = cell
    return best


def _cell(problem: Problem, verdict: Verdict) -> Cell:
    codes = {reason.code for reason in verdict.reasons}
    if not codes:
        reach = Reach.HERE
    elif codes & {"form", "direction", "mask_heads"}:
        reach = Reach.NONE
    elif "unverified" in codes and codes <= {"unverified", "package"}:
        reach = Reach.EXPECTED
    elif codes <= {"package"}:
        reach = Reach.PACKAGE
    else:
        reach = Reach.DEVICE if codes <= {"device", "package"} else Reach.OPTIONS
    return Cell(reach, problem, verdict)


@cache
def _offers_apart(manifest: KernelManifest, kind: str) -> tuple[KernelManifest, ...]:
    """A manifest of the kernel's name for each offer, with the offers for a kind of device first."""
    if len(manifest.offers) == 1:
        return ()
    offers = sorted(manifest.offers, key=lambda offer: not offer.runs_on(kind))
    return tuple(manifest.model_copy(update={"offers": (offer,)}) for offer in offers)


def installs(reasons: Iterable[Reason]) -> tuple[str, ...]:
    """The commands that install missing packages, each once."""
    advice = (reason.advice for reason in reasons if reason.code == "package")
    return tuple(dict.fromkeys(text.removeprefix(_INSTALL) for text in advice if text.startswith(_INSTALL)))


#: The cells of each kernel and pattern, one for each direction listed.
Matrix = Mapping[tuple[str, str], Sequence[Cell]]
_STYLES = dict(zip(Reach, ("bold green", "cyan", "yellow", "dim", "red", "dim"), strict=True))


def _abbreviations(patterns: Iterable[str]) -> dict[str, str]:
    """Three letters for each pattern: the initials of its words, filled up from the last word; a number where taken."""
    short: dict[str, str] = {}
    for name in patterns:
        words = [word for word in name.split("_") if word][:3] or [name]
        letters = "".join(word[0] for word in words[:-1]) + words[-1]
        tries = (letters[:3], *(f"{letters[:2]}{number}" for number in range(2, 10)), name)
        short[name] = next(text for text in tries if text not in short.values())
    return short


def print_matrix(console: Console, kernels: Mapping[str, KernelManifest], patterns: list[str], matrix: Matrix) -> None:
    """Prints the matrix and its legend. A narrow terminal gets several tables."""
    short = _abbreviations(patterns)
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
    reaches = {cell.reach for cell in cells}
    for reach, mark in ((Reach.PACKAGE, "+"), (Reach.EXPECTED, "?")):
        if reach in reaches:
            text.append(mark, _STYLES[reach])
    if Reach.EXPECTED not in reaches and any(cell.standing is Standing.VERIFIED_HERE for cell in cells):
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
        refused = [cell for cell in cells if cell.reach not in (Reach.HERE, Reach.NONE)]
        masks: dict[Reason, dict[str, None]] = {}
        for cell in refused:
            for reason in cell.verdict.reasons:
                masks.setdefault(reason, {})[cell.problem.mask.label] = None
        found = installs(masks)
        commands += [(name, command) for command in found]
        # A kernel may run different masks on different devices.
        devices = sorted((each for each in masks if each.code == "device"), key=lambda each: len(masks[each]))
        where = {each: f" ({', '.join(masks[each])})" for each in devices[:-1]}
        where |= dict.fromkeys(devices[1:][-1:], " (other masks)")
        for reason in masks:
            sentence = str(replace(reason, advice="") if found else reason).removeprefix(f"{name} ")
            said.append((name + where.get(reason, ""), sentence))
        said += [(name, note) for note in _detours(cells, question)]
    for title, lines in (("", by_reason(said)), ("To install missing packages:", by_reason(commands))):
        console.print(f"\n[bold]{title}[/]" if title and lines else "")
        for line, names in lines.items():
            console.print(f"[bold]{safe(', '.join(names))}[/]")
            console.print(Padding(safe(line), (0, 0, 0, 2)))


def print_strategies(console: Console, strategies: Mapping[str, StrategyManifest]) -> None:
    """Prints the context-parallel strategies with the axes of their meshes and their placements."""
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
    """Prints the reasons why a kernel takes a pattern or not, and the kernels that run it here, by direction."""
    console.print(f"[bold]{safe(kernel)}[/] on [bold]{safe(pattern)}[/]")
    console.print(f"[dim]{safe(question.device)}\n{question.describe()}[/]\n")
    grid = Table.grid(padding=(0, 2, 0, 0))
    for cell in cells:
        direction = cell.problem.direction
        mark = marks()[0] if cell.reach is Reach.HERE else marks()[1]
        here = ", verified on this machine" if cell.standing is Standing.VERIFIED_HERE else ""
        grid.add_row(f"[bold]{direction}[/]", f"{mark} {cell.reach.meaning}{here}")
        for line in _details(cell):
            grid.add_row("", safe(line))
        others = ", ".join(alternatives[direction]) or "no other kernel"
        grid.add_row("", f"[dim]{'also' if cell.reach is Reach.HERE else 'instead'}:[/] {safe(others)}")
    console.print(grid)


def _details(cell: Cell) -> list[str]:
    offer, problem = cell.verdict.offer, cell.problem
    if offer is None:
        return [str(reason) for reason in cell.verdict.reasons]
    most = f", at most {offer.most}" if offer.most else ""
    blocks = f", blocks of {', '.join(map(str, offer.block_sizes))}" if offer.block_sizes else ""
    dims = f"up to {offer.max_head_dim}" if offer.max_head_dim else "of any size"
    dims += f", multiples of {offer.head_dim_multiple}" if offer.head_dim_multiple > 1 else ""
    if offer.head_dims:
        dims = ", ".join(dims_text(*dim) if isinstance(dim, tuple) else str(dim) for dim in offer.head_dims)
    dims += ", of v apart" if offer.unequal_head_dims else ""
    devices = ["CPU"] if offer.cpu else []
    devices += [f"compute capability {offer.verified_on}"] if offer.verified_on else []
    devices += [f"compute capability {offer.expected_on} (expected)"] if offer.expected_on else []
    heads = f"{problem.heads_q}:{problem.heads_kv} heads"
    return [
        f"asked in {problem.dtype}, {heads}, head dimension {problem.dims_text}",
        "covered by the offer:",
        f"  form {offer.form}{most}{blocks}, whose metadata grows as {offer.metadata}",
        f"  dtypes {', '.join(offer.dtypes)}; head dimensions {dims}; {'GQA and MHA' if offer.gqa else 'MHA alone'}"
        f"{'; soft caps' if offer.softcap else ''}",
        f"  on {' and '.join(devices)}; {'' if offer.deterministic else 'not '}deterministic",
        f"  log-sum-exp of its backward: {offer.backward}",
    ]
