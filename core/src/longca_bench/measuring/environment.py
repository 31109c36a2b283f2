"""The environment of a run, captured once and kept with its records."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from longca import plugins
from longca.manifests import Device, installed_version
from longca.manifests.devices import driver_version
from longca.manifests.packages import alternatives
from longca_advice.devices import evidence_name
from longca_advice.evidence import Run
from longca_bench.measuring.gpu_state import gpu_state
from longca_bench.suites.suite import Suite
from longca_bench.suites.tasks import elsewhere

__all__ = ["device_facts", "environment", "surroundings", "this_machine"]

_PACKAGES = ("torch", "triton", "numpy", "pydantic", "pluggy")


def environment(registry: plugins.Registry, suite: Suite, device: Device) -> dict[str, Any]:
    """The suite of a run, its surroundings, and the kernels that run on other devices only."""
    said = {"name": suite.name, "version": suite.version, "digest": suite.digest}
    return {"suite": said, **surroundings(registry, device), "elsewhere": elsewhere(registry, device)}


def surroundings(registry: plugins.Registry, device: Device) -> dict[str, Any]:
    """The surroundings of a measurement: platform, device, driver, threads, packages, plugins and revision."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        **device_facts(device),
        "gpu": gpu_state() if device.kind == "cuda" else None,
        "packages": {name: installed_version(name) for name in _package_names(registry)},
        "plugins": {p.name: {"distribution": p.distribution, "version": p.version} for p in registry.plugins},
        "git_revision": _git_revision(),
    }


def device_facts(device: Device) -> dict[str, Any]:
    """A device, with the versions of CUDA and of its driver."""
    return {
        "device": {"kind": device.kind, "name": device.name, "capability": device.capability, "memory": device.memory},
        "cuda": torch.version.cuda,
        "driver": driver_version(),
    }


def this_machine(registry: plugins.Registry, device: Device) -> Run:
    """The run of what this machine's history has, with the versions of the packages that results may depend on."""
    found = {name: installed_version(name) for name in _package_names(registry)}
    versions = {name: version for name, version in found.items() if version is not None}
    about: dict[str, Any] = {"capability": device.capability, "memory": device.memory}
    return Run(run="this machine", device=evidence_name(device), packages=versions, **about)


def _package_names(registry: plugins.Registry) -> list[str]:
    """Packages that results may depend on: the core's packages, and the packages that kernels require."""
    manifests = registry.kernels.values()
    texts = {text for m in manifests for text in (*m.requires, *(r for offer in m.offers for r in offer.requires))}
    return [*_PACKAGES, *sorted({wanted.name for text in texts for wanted in alternatives(text)} - set(_PACKAGES))]


def _git_revision() -> str | None:
    """The revision of LongCA's source tree, or None for an installed package."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
