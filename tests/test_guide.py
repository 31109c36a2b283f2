"""The guide to writing a plugin: its example, installed afresh, is listed, verified, ranked and tested."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .imports import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "first-kernel"
GUIDE = ROOT / "docs" / "writing-a-plugin.md"

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("guide")]


class Newcomer:
    """A folder with the example in it, a place where it is installed, and a shell that sees both."""

    def __init__(self, root: Path) -> None:
        self.folder, self._site = root / "first-kernel", root / "site"
        ignored = shutil.ignore_patterns("__pycache__", ".*_cache")
        shutil.copytree(EXAMPLE, self.folder, ignore=ignored)
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LONGCA_")},
            "LONGCA_CACHE_DIR": str(root / "cache"),
            "LONGCA_HISTORY": str(root / "history.jsonl"),
            "PYTHONPATH": str(self._site),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "100",
        }
        offline = ("--no-deps", "--no-build-isolation", "--quiet", "--target", str(self._site))
        self.python("-m", "pip", "install", *offline, ".")

    def python(self, *arguments: str) -> str:
        """Runs Python in the folder; what it prints."""
        ran = subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, env=self._env, capture_output=True, text=True, timeout=600
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def longca(self, *arguments: str) -> str:
        """Runs the command line."""
        return self.python("-m", "longca", *arguments)


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory):
    return Newcomer(tmp_path_factory.mktemp("guide"))


def test_it_is_found(newcomer):
    found = r"✓ +longca-first 0\.1\.0\s+entry point first = longca_first\s+kernels: first"
    assert re.search(found, newcomer.longca("plugins"))


def test_it_is_listed(newcomer):
    (row,) = re.findall(r"^ +first (.*)$", newcomer.longca("list-capabilities", "--device", "cpu"), re.MULTILINE)
    assert row.split() == ["FB"] * 12 + ["·"] * 2


def test_it_is_verified(newcomer):
    lines = newcomer.longca("verify", "--kernel", "first", "--device", "cpu")
    assert len(re.findall(r"✓ .*row_intervals", lines)) == 4


def test_it_is_ranked(newcomer):
    asked = ("--seqlen", "1024", "--mask", "causal", "--device", "cpu")
    said = newcomer.longca("run", "quick", "--kernel", "first", "--kernel", "sdpa", *asked)
    assert "4 cases: 4 ok" in said
    assert re.search(r"sdpa +first", said)


def test_it_conforms(newcomer):
    (said,) = re.findall(r"^(\d+ passed) in", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert re.search(rf"\b{said}", newcomer.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"))


def test_the_guide_includes_every_file():
    text = GUIDE.read_text(encoding="utf-8")
    included = set(re.findall(r"^```\{literalinclude\} (\S+)$", text, re.MULTILINE))
    files = {path for folder in ("src", "tests") for path in (EXAMPLE / folder).rglob("*.py")}
    assert {GUIDE.parent / name for name in included} == {EXAMPLE / "pyproject.toml", *files}


def test_the_guide_names_every_check():
    from longca.testing import CHECKS, KERNEL_CHECKS, PLUGIN_CHECKS

    rows = re.findall(r"^\| `(\w+)` \| \w", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [*PLUGIN_CHECKS, *KERNEL_CHECKS, *CHECKS]


def test_every_part_of_the_kernel_is_shown():
    source = (EXAMPLE / "src" / "longca_first" / "kernel.py").read_text(encoding="utf-8")
    marks = [f"# [{name}]" for name in re.findall(r"^ *# \[(\w+)\]$", source, re.MULTILINE)]
    text = GUIDE.read_text(encoding="utf-8")
    assert re.findall(r"^:start-after: \"(.*)\"$", text, re.MULTILINE) == marks
    assert re.findall(r"^:end-before: \"(.*)\"$", text, re.MULTILINE) == marks
