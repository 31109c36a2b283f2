"""What this machine has and lacks, without importing any of it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import importlib_metadata
from packaging.requirements import Requirement

from longca.discovery.candidates import CORE
from longca.manifests import installed_version, missing
from longca.manifests.devices import cpu_device, cuda_devices, driver_version
from longca.masks import PATTERNS
from longca.paths import cache_dir
from longca.plugins import Registry
from longca_bench.reports.capabilities import Cell, Question, Status, examine

__all__ = ["Finding", "find_kernels", "find_machine", "find_plugins", "find_software"]


@dataclass(frozen=True)
class Finding:
    """One thing that is here or not.

    Attributes:
        name: What it is.
        found: What was found; empty where nothing was.
        ok: Whether that is as it should be; None where it matters to nobody here.
        advice: What to do about it.
    """

    name: str
    found: str
    ok: bool | None = True
    advice: str = ""


def find_machine() -> Iterator[Finding]:
    """Python, the operating system, processor, memory and GPUs."""
    cpu = cpu_device()
    yield Finding("Python", f"{platform.python_version()} at {sys.executable}")
    yield Finding("system", f"{platform.system()} {platform.release()}, {platform.machine()}")
    yield Finding("CPU", f"{cpu.name}, {_cores()} cores")
    yield Finding("memory", _gib(cpu.memory))
    driver = driver_version()
    yield Finding("NVIDIA driver", driver or "none", True if driver else None)
    for index, gpu in enumerate(cuda_devices()):
        yield Finding(f"GPU {index}", f"{gpu}, {_gib(gpu.memory)}")
    if driver and not cuda_devices():
        hidden = f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')!r}"
        yield Finding("GPU", "none visible", False, f"the driver is there; is it hidden by {hidden}?")


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**30:.1f} GiB"


def find_software() -> Iterator[Finding]:
    """torch, triton, nvcc, the core's optional packages, and the cache folder."""
    torch = installed_version("torch")
    useless = bool(cuda_devices()) and (torch or "").endswith("+cpu")
    advice = "this build cannot use the GPU; install one for CUDA: https://pytorch.org/get-started" if useless else ""
    yield Finding("torch", torch or "none", bool(torch) and not useless, advice if torch else "pip install torch")
    for name, version, use in (
        ("triton", installed_version("triton"), "Triton kernels need it: pip install triton"),
        ("nvcc", shutil.which("nvcc"), "kernels that compile themselves need it, FlashInfer for one"),
    ):
        yield Finding(name, version or "none", True if version else None, use if cuda_devices() else "")
    yield from _extras()
    yield _cache()


def _extras() -> Iterator[Finding]:
    """The optional packages that the core's metadata names."""
    for text in importlib_metadata.requires(CORE) or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}) or "extra" not in str(marker):
            continue
        bare = f"{requirement.name}{requirement.specifier}"
        yield Finding(requirement.name, installed_version(requirement.name) or "none", *_optional(bare))


def _optional(requirement: str) -> tuple[bool | None, str]:
    return (None, f"optional: pip install '{requirement}'") if missing(requirement) else (True, "")


def _cache() -> Finding:
    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        advice = "set LONGCA_CACHE_DIR to a folder that can be written; without one, listings are slower"
        return Finding("cache", f"{folder}: {error.strerror or error}", False, advice)
    return Finding("cache", str(folder))


def find_plugins(registry: Registry) -> Iterator[Finding]:
    """The distributions that extend LongCA, the core among them, and what is wrong with them."""
    for plugin in registry.plugins:
        name = f"{plugin.distribution} {plugin.version}"
        if plugin.off:
            yield Finding(name, plugin.off, None)
        else:
            provides = f"provides {', '.join((*plugin.kernels, *plugin.strategies)) or 'nothing'}"
            yield Finding(name, "; ".join(plugin.problems) or provides, not plugin.problems)


def find_kernels(registry: Registry, question: Question) -> Iterator[Finding]:
    """For each kernel, how many patterns it runs here, or what keeps it from running any."""
    for name in registry.kernels:
        cells = {
            direction: [examine(registry, name, pattern, direction, question) for pattern in PATTERNS.values()]
            for direction in ("forward", "backward")
        }
        forward, backward = (sum(cell.status is Status.HERE for cell in some) for some in cells.values())
        if forward:
            yield Finding(name, f"runs {forward} of {len(PATTERNS)} masks here, {backward} of them backward too")
        else:
            nearest: Cell = min(cells["forward"], key=lambda cell: cell.status.distance)
            reasons = nearest.verdict.reasons
            lacks_package = nearest.status is Status.PACKAGE
            found = ". ".join(f"{reason.offered.removeprefix(f'{name} ')}; {reason.asked}" for reason in reasons)
            advice = " ".join(reason.advice for reason in reasons if reason.advice)
            yield Finding(name, found, False if lacks_package else None, advice)
