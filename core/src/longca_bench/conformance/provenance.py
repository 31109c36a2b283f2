"""Provenance: where, with which versions and with which sources a kernel is verified."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

from importlib_metadata import PackageNotFoundError, requires
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from longca.discovery import CORE
from longca.manifests import Device, installed_version
from longca.manifests.packages import alternatives
from longca.plugins import Registry
from longca_bench.measuring.environment import device_facts

__all__ = ["Provenance", "kits", "source_digests"]


@dataclass(frozen=True)
class Provenance:
    """Where, with which versions and with which sources a kernel is verified.

    Attributes:
        device: The device, with the versions of CUDA and of its driver, as in the `environment.json` of a run.
        versions: Versions of Python, PyTorch, Triton and the core, of the kernel's distribution with its kits, and of
            each package that the kernel requires. None for a package that is not installed.
        sources: Digests of the kernel's sources, from `source_digests`.
    """

    device: dict[str, Any]
    versions: dict[str, str | None]
    sources: dict[str, str | None]

    @classmethod
    def of(cls, registry: Registry, kernel: str, device: Device) -> Provenance:
        """The provenance of a verification on a device, now.

        Args:
            registry: The registry of the kernel.
            kernel: The name of the kernel or the pair.
            device: The device.
        """
        manifests, plugins = registry.manifests(kernel), registry.providers(kernel)
        texts = {text for m in manifests for text in (*m.requires, *(t for offer in m.offers for t in offer.requires))}
        required = sorted({wanted.name for text in texts for wanted in alternatives(text)})
        names = ("torch", "triton", CORE, *(kit for p in plugins for kit in kits(p.distribution)), *required)
        versions: dict[str, str | None] = {"python": platform.python_version()}
        versions |= {name: installed_version(name) for name in names}
        versions |= {plugin.distribution: plugin.version for plugin in plugins}
        return cls(device_facts(device), versions, source_digests(registry, kernel))


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
    return (path for path in package.rglob("*") if "__pycache__" not in path.parts and not path.is_dir())


def _hash(root: Path, files: Iterator[Path] | list[Path]) -> str:
    """32 hex digits of the names and the contents of some files."""
    digest = hashlib.sha256()
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in files):
        content = path.read_bytes()
        digest.update(f"{len(content)} {name}\n".encode("utf-8", "surrogateescape") + content)
    return digest.hexdigest()[:32]
