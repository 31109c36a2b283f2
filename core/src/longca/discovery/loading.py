"""Loading the objects that a manifest's import strings name, at first use. Errors name the plugin."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from longca.discovery.describing import describe
from longca.errors import LongCAError, MissingPackageError, PluginError
from longca.manifests import Manifest, missing

__all__ = ["instantiate", "load_object", "make_mix", "make_pair"]


def load_object(manifest: Manifest, import_string: str, distribution: str) -> Any:
    """Loads the object that an import string of a manifest names.

    Raises:
        MissingPackageError: The import fails, and a package that the manifest requires is not installed.
        PluginError: The import fails for any other reason.
    """
    module, _, name = import_string.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a library may call exit() if there is no GPU
        raise _explain(manifest, import_string, distribution, error) from error


def instantiate(manifest: Manifest, distribution: str) -> Any:
    """Makes a new instance of a manifest's implementation.

    Raises:
        MissingPackageError: A package that the manifest requires is not installed.
        PluginError: The class cannot be imported, or its call fails.
    """
    kind = load_object(manifest, manifest.implementation, distribution)
    try:
        return kind()
    except (KeyboardInterrupt, LongCAError):
        raise
    except BaseException as error:
        raise _explain(manifest, manifest.implementation, distribution, error) from error


def make_pair(forward: Any, load_backward: Callable[[], Any]) -> Any:
    """Joins the forward of one kernel's instance and the backward of another into one kernel.

    Args:
        forward: The instance that computes the forward.
        load_backward: Returns the other instance. It is called when the first backward is planned.
    """
    return importlib.import_module("longca.kernels.pair").Pair(forward, load_backward)


def make_mix(registry: Any, name: str) -> Any:
    """Makes several kernels into one that takes the fastest for each problem.

    Args:
        registry: Loads the kernels.
        name: The mix's name.
    """
    return importlib.import_module("longca.kernels.mix").Mix(registry, name)


def _explain(manifest: Manifest, import_string: str, distribution: str, error: BaseException) -> LongCAError:
    if isinstance(error, ImportError):
        for requirement in manifest.requires:
            if missing(requirement):
                return MissingPackageError(requirement, manifest.name, manifest.install)
    return PluginError(
        f"{manifest.name} of plugin {distribution} cannot be loaded: {import_string} raised {describe(error)}"
    )
