"""Facts about this machine: hardware, software, plugins, kernels, timing, and copies between GPUs."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from importlib_metadata import requires
from packaging.requirements import Requirement

from longca.discovery import CORE
from longca.errors import LongCAError
from longca.manifests import installed_version, missing
from longca.manifests.devices import cpu_device, cuda_devices, current_device, driver_version
from longca.manifests.installs import install_line
from longca.manifests.problem import Direction
from longca.masks import PATTERNS
from longca.plugins import Registry
from longca_bench.reports.capabilities import Question, Reach, examine, installs
from longca_bench.reports.comparison import verdict
from longca_bench.reports.words import brief_percent, ratio_text

if TYPE_CHECKING:
    from longca_bench.measuring.peer_access import PeerAccess
    from longca_bench.measuring.repeatability import Repeatability

__all__ = ["Fact", "find_kernels", "find_machine", "find_plugins", "find_software", "measure_peers", "measure_timing"]

_CPUS = Path("/sys/devices/system/cpu")
#: Share that equal results may differ by on a machine that is trusted for timing.
_TRUSTED = 0.05
#: Share of the median bandwidth below which a pair of GPUs is slow.
_SLOW = 0.8
_TURNS = "`longca run --ab A B` lets two kernels take turns, so that both meet the same noise"
_QUIET = "end other processes and let a hot machine cool down, or measure with `longca run --wait-idle 60`"
_COLLECTIVES = "strategies move tensors by collectives here"


@dataclass(frozen=True)
class Fact:
    """One fact: a thing, the finding in words, the remedy, and commands that install missing packages.

    `ok` is whether all is well. None if it does not matter on this machine.
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
    yield Fact(
        "torch",
        torch or "none",
        bool(torch) and not useless,
        advice if torch else install_line("pip install 'longca-core[run]'"),
    )
    for name, version, use in (
        ("triton", installed_version("triton"), f"Triton kernels need it: {install_line('pip install triton')}"),
        ("nvcc", shutil.which("nvcc"), "kernels that compile themselves need it, FlashInfer for one"),
    ):
        yield Fact(name, version or "none", True if version else None, use if cuda_devices() else "")
    optional = {each.name: each for each in map(Requirement, requires(CORE) or ()) if "extra" in str(each.marker)}
    optional.pop("torch", None)
    for requirement in optional.values():
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
            continue
        # Missing packages are named only if they alone stop the kernel.
        nearest = min(cells[Direction.FORWARD], key=lambda cell: cell.reach.distance)
        lacks = nearest.reach is Reach.PACKAGE
        reasons = [reason for reason in nearest.verdict.reasons if lacks or reason.code != "package"]
        found = "; ".join(f"{reason.offered.removeprefix(f'{name} ')}, and {reason.asked}" for reason in reasons)
        advice = " ".join(dict.fromkeys(reason.advice for reason in reasons if reason.advice))
        yield Fact(name, found, False if lacks else None, advice, installs(reasons))


def measure_timing() -> tuple[list[Fact], dict[str, Any]]:
    """The facts of two runs of the same work, and their numbers for JSON."""
    from longca_bench.measuring.repeatability import measure_repeatability

    found = governors(_CPUS)
    advice = "fixed frequencies make times alike: sudo cpupower frequency-set --governor performance"
    words = f"governor {', '.join(sorted(found))}" if found else "the system does not tell how it chooses frequencies"
    facts = [Fact("frequency", words, True if found == {"performance"} else None, advice if found else "")]
    try:
        runs = measure_repeatability(list(dict.fromkeys(("cpu", current_device().kind))))
    except LongCAError as error:
        return [*facts, Fact("timing", str(error), False)], {"repeatability": {}}
    facts += [fact for kind, found in runs.items() for fact in find_timing(kind, found)]
    return facts, {"repeatability": {kind: found.as_json() for kind, found in runs.items()}}


def governors(cpus: Path) -> set[str]:
    """The policies by which the system chooses the frequencies of the allowed cores. Empty where it does not tell."""
    files = (cpus / f"cpu{core}/cpufreq/scaling_governor" for core in os.sched_getaffinity(0))
    return {file.read_text("ascii").strip() for file in files if file.exists()}


def find_timing(kind: str, found: Repeatability) -> Iterator[Fact]:
    """Whether times on a device, `cpu` or `cuda`, can be trusted, by two runs of the same work."""
    name, ratio = {"cpu": "CPU", "cuda": "GPU"}[kind], found.ratio
    needed = f"results must differ by more than {brief_percent(found.needed)} to mean something on this machine"
    ends = f"95 % interval {ratio_text(ratio.low)}–{ratio_text(ratio.high)}"
    equal = f"of two equal runs A and B, A took {ratio_text(ratio.value)} times as long as B, {ends}: {verdict(ratio)}"
    yield Fact(f"{name} timing", f"{needed}; {equal}", found.needed <= _TRUSTED, _TURNS)
    yield Fact(f"{name} noise", "; ".join(found.why) or "nothing disturbed the runs", not found.why, _QUIET)


def measure_peers() -> tuple[list[Fact], dict[str, Any]]:
    """The facts of copies between GPUs, and their numbers for JSON."""
    from longca_bench.measuring.peer_access import measure_peer_access

    if len(gpus := cuda_devices()) < 2:
        here = f"{'one GPU' if gpus else 'no GPU'} is here, and copies between GPUs need two"
        return [Fact("peer access", here, None)], {"peer_access": None}
    try:
        found = measure_peer_access()
    except LongCAError as error:
        return [Fact("peer access", str(error), False)], {"peer_access": None}
    return list(find_peers(found)), {"peer_access": found}


def find_peers(found: PeerAccess) -> Iterator[Fact]:
    """The access and the bandwidths from each GPU to the others, and whether symmetric memory works."""
    rates = [rate for row in found["bandwidths"] for rate in row if rate is not None]
    usual = median(rates) if rates else 0.0
    for gpu, (reaches, row) in enumerate(zip(found["reaches"], found["bandwidths"], strict=True)):
        words = ", ".join(
            f"to {other}: {'no access' if rate is None else f'{rate:.0f} GB/s'}"
            for other, rate in enumerate(row)
            if other != gpu
        )
        slow = any(rate is not None and rate < _SLOW * usual for rate in row)
        advice = "" if all(reaches) else f"without access to peers, {_COLLECTIVES}"
        advice = advice or "some pairs are slower; see nvidia-smi topo -m"
        yield Fact(f"copies of GPU {gpu}", words, all(reaches) and not slow, advice)
    works = not found["symmetric"]
    what = "two processes write into each other's GPU" if works else found["symmetric"]
    yield Fact("symmetric memory", what, works, f"without it, {_COLLECTIVES}")
