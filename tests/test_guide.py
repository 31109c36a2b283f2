"""The guide to writing a plugin: its two examples are on the page, and work when they are installed afresh."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .imports import ROOT

EXAMPLES = [ROOT / "docs" / "examples" / name for name in ("first-kernel", "first-strategy")]
GUIDE = ROOT / "docs" / "writing-a-plugin.md"

#: A block of the page with a file, or a part of it: the file's path beneath docs/, and the code.
_SHOWN = re.compile(r"^<!-- file: (\S+) -->\n\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Newcomer:
    """Copies of the examples, the place where they are installed, and a shell that sees both."""

    def __init__(self, root: Path) -> None:
        self.folder, self._site = root / "first-kernel", root / "site"
        ignored = shutil.ignore_patterns("__pycache__", ".*_cache")
        for example in EXAMPLES:
            shutil.copytree(example, root / example.name, ignore=ignored)
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LONGCA_")},
            "LONGCA_CACHE_DIR": str(root / "cache"),
            "LONGCA_HISTORY": str(root / "history.jsonl"),
            "PYTHONPATH": str(self._site),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "100",
        }
        offline = ("--no-deps", "--no-build-isolation", "--quiet", "--target", str(self._site))
        self.python("-m", "pip", "install", *offline, *(str(root / example.name) for example in EXAMPLES))

    def python(self, *arguments: str) -> str:
        """Runs Python in the kernel's folder, and returns its output."""
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


@pytest.mark.slow
@pytest.mark.xdist_group("guide")
def test_it_is_found(newcomer):
    found = r"✓ +longca-first 0\.1\.0\s+entry point first = longca_first\s+kernels: first"
    assert re.search(found, newcomer.longca("plugins"))


@pytest.mark.slow
@pytest.mark.xdist_group("guide")
def test_it_is_listed(newcomer):
    (row,) = re.findall(r"^ +first (.*)$", newcomer.longca("list-capabilities", "--device", "cpu"), re.MULTILINE)
    assert row.split() == ["FB"] * 12 + ["·"] * 2


@pytest.mark.slow
@pytest.mark.xdist_group("guide")
def test_it_is_verified(newcomer):
    lines = newcomer.longca("verify", "--kernel", "first", "--device", "cpu")
    assert len(re.findall(r"✓ .*row_intervals", lines)) == 4


@pytest.mark.slow
@pytest.mark.xdist_group("guide")
def test_it_is_ranked(newcomer):
    asked = ("--seqlen", "1024", "--mask", "causal", "--device", "cpu")
    said = newcomer.longca("run", "quick", "--kernel", "first", "--kernel", "sdpa", *asked)
    assert "4 cases: 4 ok" in said
    assert re.search(r"sdpa +first", said)


@pytest.mark.slow
@pytest.mark.xdist_group("guide")
def test_it_conforms(newcomer):
    (said,) = re.findall(r"^(\d+ passed) in", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert re.search(rf"\b{said}", newcomer.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"))


@pytest.mark.slow
@pytest.mark.xdist_group("guide")
def test_the_strategy_is_right_on_two_ranks(newcomer):
    one = ("causal_document", "--documents", "200,56,300,84", "--heads", "4:2", "--head-dim", "32")
    where = ("--dtype", "float32", "--device", "cpu", "--kernel", "sdpa", "--strategy", "gather_all", "--nproc", "2")
    assert "2 cases: 2 ok" in newcomer.longca("run", *one, *where)


@pytest.mark.slow
@pytest.mark.xdist_group("guide")
def test_the_layout_of_the_strategy_can_be_shown(newcomer):
    said = newcomer.longca("show-layout", "gather_all", "--mask", "causal", "--seqlen", "4096", "--ranks", "2")
    page = GUIDE.read_text(encoding="utf-8")
    assert all(line.strip() in page for line in said.splitlines() if line[:1].isdigit())


def test_the_page_shows_the_files_of_the_examples():
    shown: dict[str, str] = {}
    for name, code in _SHOWN.findall(GUIDE.read_text(encoding="utf-8")):
        shown[name] = f"{shown.get(name, '')}\n{code}"
    files = {path for example in EXAMPLES for path in (*example.rglob("*.py"), *example.rglob("*.toml"))}
    assert {GUIDE.parent / name for name in shown} == files
    for name, code in shown.items():
        text = (GUIDE.parent / name).read_text(encoding="utf-8")
        assert _lines(code) == _lines(text), f"{GUIDE.name} shows another {name}"


def _lines(code: str) -> list[str]:
    """The lines of some code. Blank lines do not count, because parts of a file end at them."""
    return [line for line in code.splitlines() if line.strip()]


def test_the_guide_names_every_check():
    from longca.testing import CHECKS, KERNEL_CHECKS, PLUGIN_CHECKS

    page = GUIDE.read_text(encoding="utf-8")
    tested = page[page.index("## 8. Tested") : page.index("## 9. Ranked")]
    rows = re.findall(r"^\| `(\w+)` \| \w", tested, re.MULTILINE)
    assert rows == [*PLUGIN_CHECKS, *KERNEL_CHECKS, *CHECKS]
