"""Nothing that a user meets is missing from the guide in docs/: each of these fails when something is left out.

Pages contain their reference tables. `docs/reference.py` writes them in place, and a stale one fails here.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import typer.main
from pluggy import PluginManager

from longca import errors, hookspecs, masks, registry
from longca_bench.cli.app import app
from longca_bench.measuring.records import Record
from longca_bench.measuring.status import Status
from longca_bench.reports.formats import FORMATS
from longca_bench.suites.suite import Suite, Sweep
from longca_bench.verification.findings import Finding

from .docs_pages import docs_module
from .imports import DISTRIBUTIONS, ROOT, modules

DOCS = ROOT / "docs"


@cache
def _page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def _rows(page: str) -> dict[str, str]:
    """The rows of a page's tables, by the name in code that begins them."""
    return dict(re.findall(r"^\| `(\w+)[^`]*`[^|]*\|(.*)\|$", page, re.MULTILINE))


def _section(page: str, heading: str) -> str:
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,3}} |\Z)", page, re.DOTALL | re.MULTILINE)
    assert found, f"no section {heading}"
    return found[2]


def _missing(names: Any, page: str) -> list[str]:
    """Names that begin no row of a page's tables, or one that says nothing."""
    rows = _rows(page)
    return [name for name in names if not re.search(r"\w", rows.get(name, ""))]


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_the_reference_tables_of_a_page_are_todays(page):
    assert docs_module("reference").stale(page.read_text(encoding="utf-8")) == [], (
        "write them again: python docs/reference.py"
    )


def test_every_hook():
    manager = PluginManager("longca")
    manager.add_hookspecs(hookspecs)
    assert not _missing([name for name in vars(manager.hook) if not name.startswith("_")], _page("concepts.md"))


def test_every_pattern_and_factor():
    assert not _missing([*masks.PATTERNS, *masks.FACTORS], _section(_page("masks.md"), "Patterns and factors"))


def test_every_form():
    assert {form for form in masks.Form if f"`{form}`" not in _page("masks.md")} == set()


def test_every_kernel_of_the_core():
    found = registry()
    core = [name for name in found.kernels if found.provider(name).distribution == "longca-core"]
    assert len(core) > 1
    assert not _missing(core, _page("concepts.md"))


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _commands(child, f"{path} {name}")


@pytest.mark.parametrize(
    ("path", "command"), [pytest.param(*pair, id=pair[0]) for pair in _commands(typer.main.get_command(app), "longca")]
)
def test_every_command_argument_and_option(path, command):
    section = _section(_page("commands.md"), f"`{path}`")
    assert command.help
    assert command.help.split(".")[0].split()[0] in section
    for param in command.params:
        names = [param.name.upper()] if param.param_type_name == "argument" else [*param.opts, *param.secondary_opts]
        for name in names:
            row = next((line for line in section.splitlines() if re.match(rf"\|.*`\[?{name}[\]… `]", line)), "")
            assert re.search(r"\w", row.split("|")[-2] if row else ""), f"{name} is not documented"


def test_every_option_of_run_has_its_word_in_the_guide():
    run = next(command for path, command in _commands(typer.main.get_command(app), "longca") if path == "longca run")
    options = [name for param in run.params for name in param.opts if name.startswith("--")]
    assert [name for name in options if not re.search(rf"{name}\b", _page("running.md"))] == []


def test_every_status():
    assert not _missing(Status, _section(_page("results.md"), "Statuses"))


def test_every_format_of_a_report():
    assert not _missing(FORMATS, _section(_page("results.md"), "Reports"))


def test_every_suite_of_the_core():
    suites = [path.stem for path in (ROOT / "core" / "src" / "longca_bench" / "suites").glob("*.toml")]
    assert len(suites) > 1
    assert not _missing(suites, _section(_page("running.md"), "A suite"))


@pytest.mark.parametrize("model", [Suite, Sweep])
def test_every_suite_field(model):
    assert not _missing(model.model_fields, _page("running.md"))


def test_every_record_field():
    assert not _missing(Record.model_fields, _section(_page("results.md"), "A record"))
    assert not _missing(Finding.__dataclass_fields__, _section(_page("results.md"), "Findings"))


def test_nothing_is_said_of_fields_that_are_gone():
    for model in (Record, Suite, Sweep):
        assert list(docs_module("reference").attributes(model)) == list(model.model_fields)


def test_every_error():
    assert not _missing(errors.__all__, _page("api/errors.md"))


def test_every_environment_variable():
    read = re.compile(r"\bLONGCA_[A-Z][A-Z_]*\b")
    sources = [path for distribution in DISTRIBUTIONS for path in modules(distribution).values()]
    names = {name for path in sources for name in read.findall(path.read_text(encoding="utf-8"))}
    assert names
    assert not _missing(sorted(names), _page("commands.md"))


def test_every_suite_in_the_guide_is_one():
    shown = re.findall(r"^```toml\n(.*?)^```$", _page("running.md"), re.DOTALL | re.MULTILINE)
    assert shown
    for text in shown:
        Suite.model_validate(tomllib.loads(text))


def test_every_page_is_in_a_table_of_contents():
    toctree = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    listed = {
        f"{page.parent.relative_to(DOCS) / name}.md".removeprefix("./")
        for page in DOCS.rglob("index.md")
        for tree in toctree.findall(page.read_text(encoding="utf-8"))
        for name in re.findall(r"^[\w/-]+$", tree, re.MULTILINE)
    }
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if "_build" not in path.parts}
    assert {page for page in pages if not page.startswith("examples/")} - {"index.md"} == listed


@pytest.mark.slow
def test_the_pages_build_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    for name in ("index", "commands", "api/kernels"):
        page = (tmp_path / f"{name}.html").read_text(encoding="utf-8")
        assert not re.search(r'(src|href)="(https?:)?//[^"]*\.(js|css|woff2?|png)', page), "the pages work offline"
