"""The documents at the root and on PyPI: their examples run, their links lead somewhere, and nothing is left out."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from longca import masks, registry

from .imports import DISTRIBUTIONS, ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")), *(d / "README.md" for d in DISTRIBUTIONS)]


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


def test_the_core_documents_every_pattern_kernel_and_command():
    from longca_bench.cli.app import app

    text = (ROOT / "core" / "README.md").read_text(encoding="utf-8")
    core = [name for name in registry().kernels if registry().provider(name).distribution == "longca-core"]
    commands = [f"longca {command.name}" for command in app.registered_commands]
    unknown = [name for name in (*masks.PATTERNS, *core, *commands) if not re.search(rf"`{re.escape(name)}[ `]", text)]
    assert not unknown


@pytest.mark.parametrize("pattern", masks.PATTERNS)
def test_the_core_documents_every_factor(pattern):
    text = (ROOT / "core" / "README.md").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith(f"| `{pattern}` |"))
    assert re.findall(r"`(\w+)`", row.split("|")[2]) == [*masks.PATTERNS[pattern].factors]
