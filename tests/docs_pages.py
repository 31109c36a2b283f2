"""What the tests of measured pages share: scripts of docs and results, tables, sentences, and runs for pages."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from longca_bench.measuring.records import Record

from .imports import ROOT

DOCS, RESULTS = ROOT / "docs", ROOT / "results"


def docs_module(name: str) -> ModuleType:
    """A module of the docs, beside which its parts lie."""
    if str(DOCS) not in sys.path:
        sys.path.append(str(DOCS))
    return _module(DOCS, name)


def results_module(name: str) -> ModuleType:
    """A script of the results."""
    return _module(RESULTS, name)


@cache
def _module(folder: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"longca_{folder.name}_{name}", folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found


def table_rows(page: str, *head: str) -> list[list[str]]:
    """The rows of the table of a page whose head begins with some cells."""
    lines = page.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith(f"| {' | '.join(head)} |"))
    found = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            return found
        found.append([cell.strip().strip("`") for cell in line.strip("|").split(" | ")])
    return found


def said(pattern: str, page: str) -> tuple[float, ...]:
    """The numbers of a sentence of a page, given as a pattern of its words with groups for the numbers."""
    (found,) = re.findall(pattern, " ".join(page.split()))
    return tuple(map(float, found if isinstance(found, tuple) else (found,)))


def write_runs(folder: Path, *runs: list[Record]) -> None:
    """Writes runs beneath a folder: run0, run1 and so on."""
    environment = {"device": {"name": "Some GPU"}, "packages": {"torch": "2.11.0"}, "plugins": {}}
    for number, records in enumerate(runs):
        run = folder / f"run{number}"
        run.mkdir(parents=True)
        (run / "records.jsonl").write_text("".join(r.model_dump_json() + "\n" for r in records), encoding="utf-8")
        (run / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
