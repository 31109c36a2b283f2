"""Advice: which kernel and which strategy to take for a problem, from evidence and without a GPU. Torch-free.

`longca` asks the functions that are named here. Each is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["arrange_shared", "arranged", "choose", "choose_kernel"]

_HOMES = {
    "arrange_shared": "shared_layout",
    "arranged": "auto_layout",
    "choose": "auto_kernel",
    "choose_kernel": "auto_layout",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'longca_advice' has no attribute {name!r}")
    return getattr(importlib.import_module(f"longca_advice.{_HOMES[name]}"), name)
