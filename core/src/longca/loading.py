"""Loading the objects that a manifest's import strings name, at first use. Errors name the plugin."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from pydantic import ValidationError

from longca.errors import LongCAError, MissingPackageError, PluginError, UnsupportedError
from longca.manifests import Layout, Manifest, missing
from longca.manifests.schedule import Phase
from longca.manifests.strategy import StrategyMemory
from longca.plain_text import plain_text

__all__ = ["BrokenFunctionError", "call_function", "describe", "instantiate", "load_object"]


class BrokenFunctionError(PluginError, UnsupportedError):
    """A function that a manifest names raises or returns something else. The request is refused."""


def describe(error: BaseException) -> str:
    """An exception in one line."""
    if isinstance(error, ValidationError):
        parts = (f"{'.'.join(map(str, part['loc']))}: {part['msg']}, not {part['input']!r}" for part in error.errors())
        return plain_text(f"{type(error).__name__}: {'; '.join(parts)}")
    return plain_text(f"{type(error).__name__}: {error}").rstrip(": ")


def load_object(manifest: Manifest, import_string: str, distribution: str) -> Any:
    """The object that an import string of a manifest names.

    Raises:
        MissingPackageError: The import fails, and a package that the manifest requires is not installed.
        PluginError: The import fails for any other reason.
    """
    module, _, name = import_string.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # a library may call exit() if there is no GPU
        raise _explain(manifest, import_string, distribution, error) from error


def instantiate(manifest: Manifest, distribution: str) -> Any:
    """A new instance of a manifest's implementation. It raises as `load_object` does."""
    kind = load_object(manifest, manifest.implementation, distribution)
    try:
        return kind()
    except LongCAError:
        raise
    except (Exception, SystemExit) as error:
        raise _explain(manifest, manifest.implementation, distribution, error) from error


def call_function(manifest: Manifest, field: str, arguments: tuple[Any, ...], distribution: str) -> Any:
    """The result of a torch-free function that a field of a manifest names: layout, memory, schedule, workspace or
    plan_bytes.

    Raises:
        LongCAError: The function raises it.
        BrokenFunctionError: The function raises anything else, or returns something else.
    """
    name = f"{getattr(manifest, field)} of plugin {distribution}"
    function = load_object(manifest, getattr(manifest, field), distribution)
    try:
        value = function(*arguments)
    except LongCAError:
        raise
    except (Exception, SystemExit) as error:
        raise BrokenFunctionError(f"{name} raised {describe(error)}") from error
    kinds = {"layout": Layout, "memory": StrategyMemory, "schedule": tuple}
    fits = isinstance(value, kinds.get(field, (int, np.integer, float)))
    if not fits or (field == "schedule" and not all(isinstance(phase, Phase) for phase in value)):
        raise BrokenFunctionError(f"{name} returned a {type(value).__name__}")
    return value if field in kinds else int(value)


def _explain(manifest: Manifest, import_string: str, distribution: str, error: BaseException) -> LongCAError:
    if isinstance(error, ImportError):
        for requirement in manifest.requires:
            if missing(requirement):
                return MissingPackageError(requirement, manifest.name, manifest.install)
    return PluginError(
        f"{manifest.name} of plugin {distribution} cannot be loaded: {import_string} raised {describe(error)}"
    )
