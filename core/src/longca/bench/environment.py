"""What a run was measured on: captured once, kept with its records."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from longca import plugins
from longca.bench.gpu_state import gpu_state
from longca.bench.suite import Suite
from longca.manifests import Device, installed_version
from longca.manifests.devices import driver_version

__all__ = ["environment"]

_PACKAGES = ("torch", "triton", "numpy", "pydantic", "pluggy")


def environment(registry: plugins.Registry, suite: Suite, device: Device) -> dict[str, Any]:
    """What is measured, and on what: suite, platform, device, driver, threads, packages, plugins and revision."""
    return {
        "suite": {"name": suite.name, "version": suite.version, "digest": suite.digest},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "device": {"kind": device.kind, "name": device.name, "capability": device.capability, "memory": device.memory},
        "cuda": torch.version.cuda,
        "driver": driver_version(),
        "gpu": gpu_state() if device.kind == "cuda" else None,
        "packages": {name: installed_version(name) for name in _PACKAGES},
        "plugins": {p.name: {"distribution": p.distribution, "version": p.version} for p in registry.plugins},
        "git_revision": _git_revision(),
    }


def _git_revision() -> str | None:
    """The revision of the source tree that LongCA runs from; None for an installed package."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
