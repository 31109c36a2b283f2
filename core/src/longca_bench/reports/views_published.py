"""The view of published figures: somebody else's throughputs beside measured ones of the same case.

The two come from different devices and versions, so the view has no ratio of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca_bench.reports.table import Cell, Head, Table
from longca_bench.reports.words import percent_of, three_digits, tokens

if TYPE_CHECKING:
    from longca_bench.reports.rows import Rows

__all__ = ["KERNELS", "figures", "published", "small_blocks"]

#: The kernels of LongCA-bench's paper, each with those here that run the same code.
KERNELS: Mapping[str, tuple[str, ...]] = {
    "FlashInfer": ("flashinfer_fa2", "flashinfer_fa3"),
    "FA2 Sparse": ("fa2_sparse",),
    "FlexAttention": ("flex",),
}
_CASE = ("direction", "seqlen", "heads", "block", "kept")
_UNIT, _REFUSED = "TFLOP/s", "X"


def figures(file: Path) -> list[dict[str, Any]]:
    """Every figure of a file of published tables, with its table, unit, kernel, case and value.

    Args:
        file: JSON as `results/paper/README.md` describes it.
    """
    found = json.loads(Path(file).read_text(encoding="utf-8"))["tables"]
    return [
        {"table": each["table"], "unit": each["unit"], **each["shared"], **row, **column, "value": value}
        for each in found
        for row in each["rows"]
        for column, value in zip(each["columns"], row["values"], strict=True)
    ]


def published(rows: Rows, file: Path, theirs: str = "published", ours: str = "measured") -> list[Table]:
    """A table for each published kernel: its throughput, and that of the same kernel here, the median over runs.

    Args:
        rows: The records.
        file: The published tables.
        theirs: The head of published figures, such as the device.
        ours: The head of measured figures.
    """
    measured = rows.where(status="ok", strategy=None).frame((*_CASE, "kernel", "tflops"))
    medians = measured.groupby([*_CASE, "kernel"])["tflops"].median().to_dict()
    wanted = [each for each in figures(file) if each["unit"] == _UNIT and each["value"] != _REFUSED]
    made = []
    for kernel, same in KERNELS.items():
        lines = []
        for each in (each for each in wanted if each["kernel"] == kernel):
            case = tuple(each[name] for name in _CASE)
            found = [medians.get((*case, name)) for name in same]
            if any(found):
                cells = (Cell("" if value is None else three_digits(value), value) for value in found)
                lines.append((Cell(str(each["table"])), *_about(each), _value(each["value"]), *cells))
        heads = [Head(name) for name in ("table", *_CASE, f"{kernel}, {theirs}", *(f"{name}, {ours}" for name in same))]
        made += [Table(tuple(heads), tuple(lines))] if lines else []
    return made


def small_blocks(rows: Rows, file: Path, kernel: str = "FlexAttention") -> list[Table]:
    """The published throughput of one kernel with blocks of 128 over that with blocks of 64.

    Args:
        rows: Not read; a view takes records.
        file: The published tables.
        kernel: The published name of the kernel.
    """
    found = {
        tuple(each[name] for name in _CASE): each["value"]
        for each in figures(file)
        if (each["unit"], each["kernel"]) == (_UNIT, kernel) and not isinstance(each["value"], str)
    }
    lines = []
    for seqlen, heads, kept in dict.fromkeys((key[1], key[2], key[4]) for key in found):
        pairs = [
            [found.get((way, seqlen, heads, block, kept)) for block in (128, 64)] for way in ("forward", "backward")
        ]
        ratios = (f"{a / b:.2f} ({three_digits(a)} / {three_digits(b)})" if a and b else "–" for a, b in pairs)
        lines.append(tuple(map(Cell, (tokens(seqlen), heads, percent_of(kept), *ratios))))
    return [Table(tuple(map(Head, ("tokens", "heads", "kept", "forward", "backward"))), tuple(lines))]


def _about(each: dict[str, Any]) -> list[Cell]:
    words = each["direction"], tokens(each["seqlen"]), each["heads"], str(each["block"]), percent_of(each["kept"])
    return [Cell(text) for text in words]


def _value(value: float | str) -> Cell:
    return Cell(value) if isinstance(value, str) else Cell(three_digits(value), value)
