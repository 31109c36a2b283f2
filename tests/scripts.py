"""The scripts of docs and results, as modules for tests."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from types import ModuleType

from .imports import ROOT

RESULTS = ROOT / "results"


@cache
def script(path: str) -> ModuleType:
    """A script of the repository, by its path from the root without `.py`."""
    spec = importlib.util.spec_from_file_location(f"longca_{path.replace('/', '_')}", ROOT / f"{path}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found
