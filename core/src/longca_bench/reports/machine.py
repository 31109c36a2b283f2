"""Facts about this machine: hardware, software, plugins and kernels. None of them is imported."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import requires

from packaging.requirements import Requirement

from longca.discovery import CORE
from longca.manifests import installed_version, missing
from longca.manifests.devices import cpu_device, cuda_devices, driver_version
from longca.manifests.problem import Direction
from longca.masks import PATTERNS
from longca.plugins import Registry
from longca_bench.reports.capabilities import Cell, Question, Reach, examine
from longca_bench.reports.reasons import installs

__all__ = ["Fact", "find_kernels", "find_machine", "find_plugins", "find_software"]


@dataclass(frozen=True)
class Fact:
    """One fact.

    Attributes:
        name: The name of the thing.
        found: The finding in words.
        ok: Whether all is well. None if it does not matter on this machine.
        advice: The remedy.
        install: Commands that install missing packages.
    """

    name: str
    found: str
    ok: bool | None = True
    advice: str = ""
    install: tuple[str, ...] = ()


def find_machine() -> Iterator[Fact]:
    """Python, the operating system, processor, memory, the way in which workers end, and GPUs."""
    cpu = cpu_device()
    yield Fact("Python", f"{platform.python_version()} at {sys.executable}")
    yield Fact("system", f"{platform.system()} {platform.release()}, {platform.machine()}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Fact("CPU", f"{cpu.name}, {cores} cores")
    yield Fact("memory", _gib(cpu.memory))
    driver = driver_version()
    yield Fact("NVIDIA driver", driver or "none", True if driver else None)
    for index, gpu in enumerate(cuda_devices()):
        yield Fact(f"GPU {index}", f"{gpu}, {_gib(gpu.memory)}")
    if driver and not cuda_devices():
        hidden = f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')!r}"
        yield Fact("GPU", "none visible", False, f"the driver is there; is it hidden by {hidden}?")


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**30:.1f} GiB"


def find_software() -> Iterator[Fact]:
    """torch, triton, nvcc, and the core's optional packages."""
    torch = installed_version("torch")
    useless = bool(cuda_devices()) and (torch or "").endswith("+cpu")
    advice = "this build cannot use the GPU; install one for CUDA: https://pytorch.org/get-started" if useless else ""
    yield Fact("torch", torch or "none", bool(torch) and not useless, advice if torch else "pip install torch")
    for name, version, use in (
        ("triton", installed_version("triton"), "Triton kernels need it: pip install triton"),
        ("nvcc", shutil.which("nvcc"), "kernels that compile themselves need it, FlashInfer for one"),
    ):
        yield Fact(name, version or "none", True if version else None, use if cuda_devices() else "")
    yield from _extras()


def _extras() -> Iterator[Fact]:
    """The optional packages in the core's metadata."""
    for text in requires(CORE) or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}) or "extra" not in str(marker):
            continue
        bare = f"{requirement.name}{requirement.specifier}"
        found = installed_version(requirement.name) or "none"
        about = (None, f"optional: pip install '{bare}'") if missing(bare) else (True, "")
        yield Fact(requirement.name, found, *about)


def find_plugins(registry: Registry) -> Iterator[Fact]:
    """The distributions that extend LongCA, including the core, and their problems."""
    for plugin in registry.plugins:
        name = f"{plugin.distribution} {plugin.version}"
        if plugin.off:
            yield Fact(name, plugin.off, None)
        else:
            provides = f"provides {', '.join((*plugin.kernels, *plugin.strategies)) or 'nothing'}"
            yield Fact(name, "; ".join(plugin.problems) or provides, not plugin.problems)


def find_kernels(registry: Registry, question: Question) -> Iterator[Fact]:
    """For each kernel, the number of patterns that it runs here, or the reasons why it runs none."""
    for name in registry.kernels:
        cells = {
            direction: [examine(registry, name, pattern, direction, question) for pattern in PATTERNS.values()]
            for direction in Direction
        }
        forward, backward = (sum(cell.reach is Reach.HERE for cell in some) for some in cells.values())
        if forward:
            yield Fact(name, f"runs {forward} of {len(PATTERNS)} masks here, {backward} of them backward too")
        else:
            yield _hindered(name, min(cells[Direction.FORWARD], key=lambda cell: cell.reach.distance))


def _hindered(kernel: str, nearest: Cell) -> Fact:
    """A kernel that runs nothing here, by the cell that is nearest to running.

    Missing packages are named only if they alone stop the kernel.
    """
    lacks = nearest.reach is Reach.PACKAGE
    reasons = [reason for reason in nearest.verdict.reasons if lacks or reason.code != "package"]
    found = "; ".join(f"{reason.offered.removeprefix(f'{kernel} ')}, and {reason.asked}" for reason in reasons)
    advice = " ".join(dict.fromkeys(reason.advice for reason in reasons if reason.advice))
    return Fact(kernel, found, False if lacks else None, advice, installs(reasons))
