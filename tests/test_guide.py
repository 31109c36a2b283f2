"""The plugins of `longca new-plugin` work when they are installed afresh, as the guide to writing a plugin says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

#: What the guide asks `longca new-plugin` for, and the folders that it gets.
ASKED = {"longca-first": ("first",), "longca-gather-all": ("--strategy", "gather_all")}

#: A step of the CI file that needs no network.
_STEP = re.compile(r"^ +- run: (?!pip install)(.*)$", re.MULTILINE)


class Newcomer:
    """The plugins of the guide, the place where they are installed, and a shell that sees both."""

    def __init__(self, root: Path) -> None:
        self.root, self._site = root, root / "site"
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LONGCA_")},
            "LONGCA_HISTORY": str(root / "history.jsonl"),
            "MYPY_CACHE_DIR": str(root / "types"),
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
            "PYTHONPATH": str(self._site),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "100",
        }
        for asked in ASKED.values():
            self.longca("new-plugin", *asked)

    def install(self) -> None:
        """Installs the plugins."""
        offline = ("--no-deps", "--no-build-isolation", "--quiet", "--target", str(self._site))
        self.run(sys.executable, "-m", "pip", "install", *offline, *(str(self.root / folder) for folder in ASKED))

    def run(self, *command: str, folder: str = ".") -> str:
        """Runs a command in a folder, and returns its output."""
        where = self.root / folder
        ran = subprocess.run(command, cwd=where, env=self._env, capture_output=True, text=True, timeout=600)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def longca(self, *arguments: str) -> str:
        """Runs the command line."""
        return self.run(sys.executable, "-m", "longca", *arguments)


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory):
    found = Newcomer(tmp_path_factory.mktemp("guide"))
    found.install()
    return found


@pytest.mark.slow
@pytest.mark.xdist_group("guide")
def test_it_is_found_and_listed(newcomer):
    found = r"✓ +longca-first 0\.1\.0\s+entry point first = longca_first\s+kernels: first"
    assert re.search(found, newcomer.longca("plugins"))
    (row,) = re.findall(r"^ +first (.*)$", newcomer.longca("list-capabilities", "--device", "cpu"), re.MULTILINE)
    assert row.split() == ["FB"] * 12 + ["·"] * 2
    said = newcomer.longca("show-layout", "gather_all", "--mask", "causal", "--seqlen", "4096", "--gpus", "2")
    assert "Gather all, ring 2, contiguous placement" in said


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.xdist_group("guide")
def test_it_is_verified_and_ranked(newcomer):
    lines = newcomer.longca("verify", "--kernel", "first", "--device", "cpu")
    assert len(re.findall(r"✓ .*row_intervals", lines)) == 4
    problem = ("--seqlen", "1024", "--mask", "causal", "--device", "cpu")
    said = newcomer.longca("run", "quick", "--kernel", "first", "--kernel", "sdpa", *problem)
    assert "4 cases: 4 ok" in said
    assert re.search(r"sdpa +first", said)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.xdist_group("guide")
@pytest.mark.parametrize("folder", ASKED)
def test_its_own_ci_is_green(newcomer, folder):
    steps = _STEP.findall((newcomer.root / folder / ".github/workflows/tests.yml").read_text(encoding="utf-8"))
    assert [step.split()[0] for step in steps] == ["ruff", "ruff", "mypy", "python"]
    *_, tested = [newcomer.run(*step.split(), folder=folder) for step in steps]
    assert re.search(r"\b\d+ passed", tested)
