"""Module specs: the places of a module and of its parents, found without importing any of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec

__all__ = ["module_specs"]


def module_specs(module: str) -> Iterator[ModuleSpec]:
    """The specs of a module's parents, the outermost first, and of the module. They end where none is found.

    Args:
        module: The full name of the module.
    """
    where, name = None, ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        try:
            specs = (finder.find_spec(name, where) for finder in sys.meta_path)
            spec = next((spec for spec in specs if spec is not None), None)
            if spec is None:
                return
            where = spec.submodule_search_locations and list(spec.submodule_search_locations)
        except Exception:  # a third-party finder may raise anything
            return
        yield spec
