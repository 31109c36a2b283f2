"""The table "Where to change what" in CONTRIBUTING.md: all its files exist, and two rows are counted in the source.

A pattern or a status is named by string constants and by members of `Status`. The files with these names are the files
that a new pattern or status touches.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from longca_bench.measuring.status import Status

from .imports import DISTRIBUTIONS, ROOT

SECTION = r"^## Where to change what\n(.*?)(?=^## )"


def _rows() -> dict[str, set[str]]:
    """The files of each row, by the change."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = re.search(SECTION, page, re.DOTALL | re.MULTILINE)
    assert section is not None, "CONTRIBUTING.md has no section `Where to change what`"
    rows = re.findall(r"^\| (?!change|-)(.*?) \| (.*?) \|$", section[1], re.MULTILINE)
    return {change: {text for text in re.findall(r"`([^`]+)`", files) if "/" in text} for change, files in rows}


def _row(beginning: str) -> set[str]:
    (files,) = (files for change, files in _rows().items() if change.startswith(beginning))
    return files


def _sources() -> Iterator[Path]:
    for distribution in DISTRIBUTIONS:
        yield from (path for path in (distribution / "src").rglob("*") if path.suffix in (".py", ".toml", ".js"))


def _names(path: Path, word: str, member: str = "") -> bool:
    """Whether a file names a word: as a whole string, as a key, or as a member of `Status`."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return re.search(rf"[\"'`]{word}[\"'`]", text) is not None
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and node.value == word:
            return True
        if isinstance(node, ast.Attribute) and f"{ast.unparse(node.value)}.{node.attr}" == f"Status.{member}":
            return True
    return False


def _naming(word: str, member: str = "") -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in _sources() if _names(path, word, member)}


@pytest.mark.parametrize("change", _rows())
def test_every_file_of_the_table_exists(change):
    files = _rows()[change]
    assert files
    assert not [path for path in files if not (ROOT / path).is_file()]


def test_a_mask_pattern_touches_the_files_of_its_row():
    assert _naming("causal_blockwise") == _row("a mask pattern")


def test_a_status_touches_the_files_of_its_row():
    assert _naming(Status.OOM.value, Status.OOM.name) == _row("a status")


def test_the_table_has_a_row_for_each_usual_change():
    words = (
        "pattern",
        "status",
        "column",
        "format",
        "kernel",
        "head dims",
        "placement",
        "K and V",
        "peer",
        "L2",
        "deadline",
    )
    changes = list(_rows())
    assert [word for word in words if not any(word in change for change in changes)] == []
