"""What the tests of measured pages share: the docs' modules, and runs written as the pages take them."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from longca_bench.measuring.records import Record

from .imports import ROOT

DOCS = ROOT / "docs"


@cache
def docs_module(name: str) -> ModuleType:
    """A module of the docs, beside which its parts lie."""
    if str(DOCS) not in sys.path:
        sys.path.append(str(DOCS))
    spec = importlib.util.spec_from_file_location(f"longca_{name}", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found


def write_runs(folder: Path, *runs: list[Record]) -> None:
    """Writes runs beneath a folder: run0, run1 and so on."""
    environment = {"device": {"name": "Some GPU"}, "packages": {"torch": "2.11.0"}, "plugins": {}}
    for number, records in enumerate(runs):
        run = folder / f"run{number}"
        run.mkdir(parents=True)
        (run / "records.jsonl").write_text("".join(r.model_dump_json() + "\n" for r in records), encoding="utf-8")
        (run / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
