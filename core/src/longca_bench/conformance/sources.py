"""Sources: digests of the code that a kernel is verified with, so that a record says which code it is of."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from longca.discovery import CORE
from longca.plugins import Registry

__all__ = ["kits", "source_digests"]

_COMPILED = "__pycache__"


def source_digests(registry: Registry, kernel: str) -> dict[str, str | None]:
    """A digest of each import package with a kernel's own code.

    These are the packages of the plugin's module, of the kernel's implementation, and of the kits that the plugin's
    distribution depends on. A digest changes with any file of its package, so other kernels of the package change it
    too. The core, the kernel's library and files elsewhere do not change it.

    Args:
        registry: The registry of the kernel.
        kernel: The name of a kernel or a pair.

    Returns:
        The digests by the packages' names. A digest is None if the package is not found, or a file cannot be read.
    """
    plugins = registry.providers(kernel)
    modules = [plugin.module for plugin in plugins]
    modules += [manifest.implementation.partition(":")[0] for manifest in registry.manifests(kernel)]
    modules += [kit.replace("-", "_") for plugin in plugins for kit in kits(plugin.distribution)]
    found = dict(map(_digest, modules))
    return {package: found[package] for package in sorted(found)}


def kits(distribution: str) -> list[str]:
    """The kits of a plugin's distribution: the distributions that it depends on, and that depend on the core.

    Args:
        distribution: The distribution's name. The import package of a kit is named like the kit.
    """
    names = [name for name in _dependencies(distribution) if name != CORE]
    return [name for name in names if CORE in _dependencies(name)]


def _dependencies(distribution: str) -> list[str]:
    """The names of the distributions that an installed distribution depends on."""
    try:
        return [canonicalize_name(Requirement(text).name) for text in requires(distribution) or ()]
    except PackageNotFoundError:
        return []


def _digest(module: str) -> tuple[str, str | None]:
    """The name of a module's package, and the package's digest. A module without a package stands for itself."""
    for name in accumulate(module.split("."), "{}.{}".format):
        try:
            spec = find_spec(name)
            if spec is None or not spec.has_location or spec.origin is None:
                continue  # a namespace, which several distributions may share
            path = Path(spec.origin)
            return name, _hash(path.parent, _files(path.parent) if spec.submodule_search_locations else [path])
        except ImportError:
            break
        except OSError:
            return name, None
    return module, None


def _files(package: Path) -> Iterator[Path]:
    """The files of a package, without compiled ones."""
    for folder, folders, names in os.walk(package, onerror=_raise):
        folders[:] = [name for name in folders if name != _COMPILED]
        yield from (Path(folder, name) for name in names)


def _raise(error: OSError) -> None:
    raise error


def _hash(root: Path, files: Iterator[Path] | list[Path]) -> str:
    """32 hex digits of the names and the contents of some files."""
    digest = hashlib.sha256()
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in files):
        content = path.read_bytes()
        digest.update(f"{len(content)} {name}\n".encode("utf-8", "surrogateescape") + content)
    return digest.hexdigest()[:32]
