"""Tables as GitHub's Markdown. Text of somebody else's is shown and not obeyed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from longca_bench.reports.runs import complaints
from longca_bench.reports.table import Cell, Head, Mark, Table, legend
from longca_bench.reports.text import printable
from longca_bench.reports.views import SUMMARY, tables
from longca_bench.reports.words import status_counts

if TYPE_CHECKING:
    from longca_bench.reports.rows import Rows

__all__ = ["escaped", "markdown_of", "page_of"]

_NO_ENVIRONMENT = "Not recorded: there is no `environment.json` beside the records."
_CODE = re.compile(r"[\w .,:=×/+*%–-]+")
_EMPHASIS = {Mark.BEST: "**", Mark.ASIDE: "*"}


def markdown_of(found: Iterable[Table]) -> str:
    """Tables one after another, each under its title as a heading of the third level."""
    parts: list[str] = []
    heads: list[Head] = []
    for table in found:
        parts += [f"### {escaped(table.title)}"] if table.title else []
        parts += ["\n".join(_lines(table)), *map(escaped, table.notes)]
        heads += table.heads
    return "\n\n".join([*parts, *([escaped(said)] if (said := legend(heads)) else [])])


def page_of(rows: Rows) -> str:
    """Runs as a page: their suites, the views of a summary, and their environments."""
    suites = rows.frame(("suite", "suite_version", "suite_digest")).drop_duplicates().itertuples(index=False)
    title = ", ".join(f"{name} {version} ({digest})" for name, version, digest in suites)
    parts = [f"# {escaped(title)}", f"{escaped(status_counts(rows['status']))}."]
    parts += map(escaped, (*complaints(rows.runs), *rows.disturbed(), *rows.unreached()))
    for name in (*SUMMARY, "environment"):
        found = tables(name, rows)
        if found or name == "environment":
            heading = name.replace("-", " ").capitalize()
            parts += [f"## {heading}", markdown_of(found) if found else _NO_ENVIRONMENT]
    return "\n\n".join(parts) + "\n"


def escaped(text: object) -> str:
    """Text on one line, shown and not obeyed, in a table's cell too."""
    line = printable(" ".join(str(text).split()))
    line = re.sub(r"([\\`*\[\]<>|#~$&])", r"\\\1", line)
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", line)


def _lines(table: Table) -> Iterable[str]:
    rule = ["---" if head.left else "---:" for head in table.heads]
    heads = [_code(head.text) if head.code_head else escaped(head.text) for head in table.heads]
    for cells in (heads, rule, *(map(_cell, table.heads, row) for row in table.rows)):
        yield f"| {' | '.join(cells)} |"


def _cell(head: Head, cell: Cell) -> str:
    text = _code(cell.text) if head.code and cell.mark is not Mark.ASIDE else escaped(cell.text)
    emphasis = _EMPHASIS.get(cell.mark, "") if text else ""
    return f"{emphasis}{text}{emphasis}"


def _code(text: str) -> str:
    """Text as code if nothing in it could end the code. Other text is escaped."""
    return f"`{text}`" if _CODE.fullmatch(text) else escaped(text)
