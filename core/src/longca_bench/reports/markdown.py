"""A run as a Markdown page: what it was measured on, the tables, and everything that failed with its message."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from longca_bench.reports.rank_cells import HEADS, LEGEND, RankRow, RankTable, alone, rank_tables, refusals
from longca_bench.reports.run_cells import (
    Row,
    cell,
    counts,
    failures,
    idle,
    rows,
    shape_columns,
    throughput_unit,
    unsupported,
)
from longca_bench.reports.run_source import Run, flatten
from longca_bench.reports.text import printable

if TYPE_CHECKING:
    from longca_bench.measuring.records import Record

__all__ = ["escaped", "markdown", "write_markdown"]


def write_markdown(run: Run, path: Path) -> Path:
    """Writes the page.

    Args:
        run: What to report.
        path: Where to.

    Returns:
        The path.
    """
    path.write_text(markdown(run), encoding="utf-8")
    return path


def markdown(run: Run) -> str:
    """The page, in GitHub's Markdown."""
    parts = [f"# {escaped(', '.join(run.suites))}", counts(run.records) + "."]
    of_one = alone(run.records)
    for direction in dict.fromkeys(record.direction for record in of_one):
        chosen = [record for record in of_one if record.direction == direction]
        parts += [f"## {escaped(direction)}", _legend(chosen), _results(chosen)]
    parts += _of_ranks(run.records)
    parts += _failed(run.records)
    parts += ["## Environment", _environment(run)]
    return "\n\n".join(parts) + "\n"


def escaped(text: object) -> str:
    """Text of somebody else's on one line, shown and not obeyed, in a table's cell too."""
    line = printable(" ".join(str(text).split()))
    line = re.sub(r"([\\`*\[\]<>|#~$&])", r"\\\1", line)
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", line)


def _legend(records: Sequence[Record]) -> str:
    unit, _ = throughput_unit(records)
    doubt = " `?` marks what is above the hardware's peak." if any(r.status == "suspect" for r in records) else ""
    return (
        f"Median time in ms, and {unit}; the fastest of a row in bold, – where a kernel does not take the mask.{doubt}"
    )


def _results(records: Sequence[Record]) -> str:
    nothing = idle(records)
    kernels = [kernel for kernel in dict.fromkeys(record.kernel for record in records) if kernel not in nothing]
    _, factor = throughput_unit(records)
    shape = shape_columns(records)
    heads = ["mask", "tokens", *shape, "dense", "tiles", *kernels]
    body = [
        [*map(escaped, row.about(shape)), *(_cell(row, kernel, factor) for kernel in kernels)] for row in rows(records)
    ]
    return _table(heads, body, left=1)


def _cell(row: Row, kernel: str, factor: float) -> str:
    record = row.records.get(kernel)
    if record is None:
        return ""
    text = " / ".join(cell(record, factor).split())
    bold = record.status == "ok" and record.median == row.fastest
    return f"**{text}**" if bold else text


def _of_ranks(records: Sequence[Record]) -> Iterator[str]:
    """The tables of several ranks."""
    tables = rank_tables(records)
    if tables:
        yield "## Several ranks"
        yield f"{escaped(LEGEND[0].upper() + LEGEND[1:])}. The fastest of a table in bold."
    for table in tables:
        yield f"### {escaped(table.title)}"
        yield _table(HEADS, [_rank_cells(row, table) for row in table.rows], left=3)


def _rank_cells(row: RankRow, table: RankTable) -> list[str]:
    fastest = row.record.status == "ok" and row.record.median == table.fastest
    return [f"**{escaped(cell)}**" if fastest and index == 3 else escaped(cell) for index, cell in enumerate(row.cells)]


def _failed(records: Sequence[Record]) -> Iterator[str]:
    failed = failures(records)
    if failed:
        yield "## What failed"
        heads = ["status", "kernel", "cases", "message", "what to do"]
        body = [[f.status, f.kernel, str(f.cases), escaped(f.message), escaped(f.advice)] for f in failed]
        yield _table(heads, body, left=5)
    of_one = alone(records)
    nothing = idle(of_one)
    taken = (record for record in of_one if record.kernel not in nothing)
    missing = [f"- {escaped(kernel)}: {escaped(', '.join(patterns))}" for kernel, patterns in unsupported(taken)]
    if nothing:
        missing.append(f"- {escaped(', '.join(nothing))}: all of this run's")
    missing += [f"- {escaped(refusal)}" for refusal in refusals(records)]
    if missing:
        yield "## Masks that a kernel does not take"
        yield "\n".join(missing)


def _environment(run: Run) -> str:
    if run.environment is None:
        return "Not recorded: there is no `environment.json` beside the records."
    return _table(["", "found"], [[escaped(name), escaped(value)] for name, value in flatten(run.environment)], left=2)


def _table(heads: Sequence[str], body: Iterable[Sequence[str]], left: int) -> str:
    """A table whose first columns are aligned to the left. Cells of the body are Markdown already."""
    rule = ["---" if index < left else "---:" for index in range(len(heads))]
    lines = [[escaped(head) for head in heads], rule, *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
