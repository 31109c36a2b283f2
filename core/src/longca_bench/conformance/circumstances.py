"""Circumstances: where, with which versions and with which sources a kernel is verified."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any

from longca.discovery import CORE
from longca.manifests import Device, installed_version
from longca.manifests.packages import alternatives
from longca.plugins import Registry
from longca_bench.conformance.sources import kits, source_digests
from longca_bench.measuring.environment import device_facts

__all__ = ["Circumstances"]


@dataclass(frozen=True)
class Circumstances:
    """The circumstances of a kernel's verification.

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
    def of(cls, registry: Registry, kernel: str, device: Device) -> Circumstances:
        """The circumstances of a kernel or a pair on a device, now.

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
