"""The pages and the documents on PyPI: their examples run, their links lead somewhere, and the site builds."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from longca_bench.suites.suite import Suite

from .imports import DISTRIBUTIONS, ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")), *(d / "README.md" for d in DISTRIBUTIONS)]
RUNNING = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")


def _id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _sessions(page: Path) -> str:
    """The page's interactive sessions, one after another."""
    return "\n".join(re.findall(r"^```pycon\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("page", [page for page in PAGES if _sessions(page)], ids=_id)
def test_the_examples_of_a_page_print_what_it_says(page):
    test = doctest.DocTestParser().get_doctest(_sessions(page), {}, _id(page), str(page), 0)
    report: list[str] = []
    failed, tried = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert tried > 0
    assert not failed, "".join(report)


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    missing = [t for t in targets if "://" not in t and not (page.parent / t.partition("#")[0]).exists()]
    assert not missing


@pytest.mark.parametrize("text", re.findall(r"^```toml\n(.*?)^```$", RUNNING, re.DOTALL | re.MULTILINE))
def test_a_suite_of_the_guide_is_one(text):
    Suite.model_validate(tomllib.loads(text))


@pytest.mark.slow
def test_the_pages_build_without_a_warning_and_work_offline(tmp_path):
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        str(ROOT / "docs"),
        str(tmp_path),
    ]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    for name in ("index", "commands", "api/kernels"):
        page = (tmp_path / f"{name}.html").read_text(encoding="utf-8")
        assert not re.search(r'(src|href)="(https?:)?//[^"]*\.(js|css|woff2?|png)', page)
