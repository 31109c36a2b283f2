"""The explanation of one cell of the matrix: the offer that covers it, or every reason against it with its remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from longca.manifests import Offer
from longca.manifests.verified import Standing
from longca_bench.reports.capabilities import Cell, Question, Reach
from longca_bench.reports.text import marks, safe

__all__ = ["describe_offer", "print_explanation"]


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
