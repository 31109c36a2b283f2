"""Writes the tables of all pages in place: `python docs/tables.py`, or `--check` to name the stale blocks and exit 1.

A block of docs/*.md or README.md stands between two comments:

    <!-- view: throughput results/h200/dense direction=forward seqlen=8192,32768 -->
    <!-- end -->

The first word is the name of a view of `longca_bench.reports.views`. The other words are

- paths from the root of the repository: runs, folders of runs, or one benchmark's file, where `#NAME` says under
  which name its rows stand;
- `COLUMN=VALUE` or `COLUMN=VALUE,VALUE`: only rows with these values, by `Rows.where`; `COLUMN!=VALUE`: without them;
- `NAME=VALUE`: a field of the view, or an argument of its function, such as `mean=true`, `base=fa4`,
  `rows=mask,seqlen`, `values=tflops,ms:max` (a column, and how its rows are reduced) or `title='{direction}'`;
- `level=N`: the level of the headings above tables; 3 without it.

A word with spaces stands in quotes. Numbers, `true`, `false` and `null` are read as JSON.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import in_place

from longca_bench.reports.render_markdown import markdown_of
from longca_bench.reports.rows import Rows
from longca_bench.reports.view import Value
from longca_bench.reports.views import tables

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
#: The pages that may have blocks.
PAGES = (ROOT / "README.md", *sorted(DOCS.glob("*.md")))
_BLOCK = re.compile(r"^<!-- view: (?P<words>.*?) -->\n(?P<body>.*?)^<!-- end -->$", re.DOTALL | re.MULTILINE)
#: Fields of a view that list columns, and those that list figures.
_COLUMNS, _FIGURES = {"rows", "tables", "across", "varying", "apart", "sort", "counts", "notes"}, {"values", "beside"}
_TEXTS = {"title", "pairs", "theirs", "ours"}


@dataclass(frozen=True)
class Block:
    """A block of a page.

    Attributes:
        words: The words of its first comment.
        body: The text between its comments.
    """

    words: str
    body: str

    def made(self) -> str:
        """The text that the view gives today.

        Raises:
            LongCAError: There is no such view or file, or a word is neither a column nor a field of the view.
            ValueError: The view has no such field, or no rows.
        """
        name, *others = shlex.split(self.words)
        sources = tuple(word for word in others if "=" not in word)
        rows, given = _rows(sources), dict(word.split("=", 1) for word in others if "=" in word)
        level = int(given.pop("level", 3))
        changes = {}
        for key, text in given.items():
            if (column := key.removesuffix("!")) in rows:
                rows = _narrowed(rows, column, _read(text), without=key != column)
            else:
                changes[key] = _field(key, text)
        try:
            found = tables(name, rows, **changes)
        except TypeError as error:
            raise ValueError(
                f"the block `view: {self.words}` has a word that its view does not take: {error}"
            ) from error
        if not found:
            raise ValueError(f"the block `view: {self.words}` has no rows; look at its paths and conditions")
        return f"\n{markdown_of(found, level)}\n\n"


@cache
def _rows(sources: tuple[str, ...]) -> Rows:
    file, _, under = sources[0].partition("#")
    return Rows.of_benchmark(ROOT / file, under) if "#" in sources[0] else Rows.read(*(ROOT / s for s in sources))


def _narrowed(rows: Rows, column: str, value: Any, *, without: bool) -> Rows:
    """The rows with one of some values in a column, or the rows without them."""
    values = value if isinstance(value, list) else [value]
    return rows.where(lambda found: found[column].isin(values) != without)


def _read(text: str) -> Any:
    """A value, or a list of values where there are commas."""
    if "," in text:
        return [_read(part) for part in text.split(",")]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _field(name: str, text: str) -> Any:
    """A field of a view."""
    if name in _FIGURES:
        return tuple(Value(*part.split(":")) for part in text.split(","))
    if (ROOT / text).is_file():
        return ROOT / text
    return tuple(text.split(",")) if name in _COLUMNS else text if name in _TEXTS else _read(text)


def blocks(page: str) -> Iterator[Block]:
    """The blocks of a page."""
    return (Block(found["words"], found["body"]) for found in _BLOCK.finditer(page))


def rewritten(page: str) -> str:
    """A page with today's tables in its blocks."""
    return _BLOCK.sub(
        lambda found: f"<!-- view: {found['words']} -->\n{Block(**found.groupdict()).made()}<!-- end -->", page
    )


def stale(page: str) -> list[str]:
    """The words of the blocks whose text is not today's."""
    return [block.words for block in blocks(page) if block.body != block.made()]


def main(arguments: list[str]) -> int:
    """Writes the stale blocks of all pages, or only names them with `--check`. Returns the exit code."""
    os.environ["LONGCA_HISTORY"] = os.devnull  # pages show what the records in `results` say, on any machine
    return in_place.write(ROOT, PAGES, stale, rewritten, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
