"""What LongCA-bench's paper printed of block-sparse kernels on an H100, beside what was measured here on an H200.

Source: tables 3 to 8 of arXiv 2510.17896. `results/paper` has them as data, and says how they were read and what they
count. The two are of different devices and software, so that none is divided by the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from measured_page import table
from sparse_tables import DIRECTIONS, Side, ratio_words

from longca_bench.reports.run_cells import three_digits, tokens
from longca_bench.reports.run_source import Run

#: The paper's kernels, each with those here that run the same code.
KERNELS = {
    "FlashInfer": ("flashinfer_fa2", "flashinfer_fa3"),
    "FA2 Sparse": ("fa2_sparse",),
    "FlexAttention": ("flex",),
}
THEIRS, OURS = "H100, the paper's", "H200, ours"
_THROUGHPUT = "TFLOP/s"
_NOT_SUPPORTED = "X"


@dataclass(frozen=True)
class Figure:
    """A cell of one of the paper's tables.

    Attributes:
        table: The table's number.
        unit: `TFLOP/s`, or `GB` of peak memory.
        kernel: The kernel, by the paper's name.
        heads: Query heads and KV heads, such as `64:8`.
        seqlen: Tokens.
        block: Tokens a block.
        kept: The share of key blocks that each query block keeps, which the paper calls sparsity ratio.
        direction: `forward` or `backward`.
        value: The number; `OOM`, or `X` for what the kernel does not support.
    """

    table: int
    unit: str
    kernel: str
    heads: str
    seqlen: int
    block: int
    kept: float
    direction: str
    value: float | str

    @property
    def cell(self) -> str:
        """How the page shows it."""
        return self.value if isinstance(self.value, str) else three_digits(self.value)


def read(path: Path) -> tuple[Figure, ...]:
    """Every cell of the tables, in their order.

    Raises:
        FileNotFoundError: There is no such file.
    """
    tables = json.loads(path.read_text(encoding="utf-8"))["tables"]
    return tuple(
        Figure(table=found["table"], unit=found["unit"], value=value, **found["shared"], **about, **column)
        for found in tables
        for about, values in ((_about(row), row["values"]) for row in found["rows"])
        for column, value in zip(found["columns"], values, strict=True)
    )


def _about(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "values"}


def beside(runs: Sequence[Run], figures: Iterable[Figure]) -> str:
    """A table for each of the paper's kernels: throughput of the cases that were measured here too."""
    supported = [f for f in figures if f.unit == _THROUGHPUT and f.value != _NOT_SUPPORTED]
    parts, without = [], []
    for theirs, ours in KERNELS.items():
        body = []
        for figure in (f for f in supported if f.kernel == theirs):
            measured = [_measured(runs, figure, kernel) for kernel in ours]
            if any(measured):
                body.append([*_case(figure), figure.cell, *measured])
        if body:
            heads = [f"{theirs}, {THEIRS}", *(f"`{kernel}`, {OURS}" for kernel in ours)]
            parts.append(table(["table", "direction", "tokens", "heads", "blocks", "kept", *heads], body, left=(0, 1)))
        else:
            without.append(theirs)
    if without:
        parts.append(f"Without a case that was measured here too: {', '.join(without)}.")
    return "\n\n".join(parts)


def _case(figure: Figure) -> list[str]:
    shape = tokens(figure.seqlen), figure.heads, str(figure.block), f"{figure.kept:.0%}"
    return [str(figure.table), figure.direction, *shape]


def _measured(runs: Sequence[Run], figure: Figure, kernel: str) -> str:
    """Our throughput on the same case, the median over runs; nothing where there is none."""
    side = Side(kernel, figure.block, figure.heads, figure.seqlen)
    found = [value for run in runs if (value := side.tflops(run, figure.direction, figure.kept))]
    return three_digits(median(found)) if found else ""


def small_blocks(figures: Iterable[Figure], kernel: str) -> str:
    """How much faster one of the paper's kernels is with blocks of 128 than with blocks of 64, as it has the two."""
    found = {
        (f.seqlen, f.heads, f.kept, f.direction, f.block): f.value
        for f in figures
        if (f.unit, f.kernel) == (_THROUGHPUT, kernel) and not isinstance(f.value, str)
    }
    body = []
    for seqlen, heads, kept in dict.fromkeys(key[:3] for key in found):
        both = ([found.get((seqlen, heads, kept, way, block)) for block in (128, 64)] for way in DIRECTIONS)
        cells = [ratio_words([(over, under)]) if over and under else ratio_words([]) for over, under in both]
        body.append([tokens(seqlen), heads, f"{kept:.0%}", *cells])
    return table(["tokens", "heads", "kept", *DIRECTIONS], body)
