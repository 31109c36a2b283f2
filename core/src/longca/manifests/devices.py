"""The devices of this machine, without torch: GPUs as NVML knows them, else the CPU."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from longca.manifests.packages import installed_version
from longca.manifests.problem import Device

__all__ = ["cpu_device", "cuda_devices", "current_device", "driver_version"]


@cache
def current_device() -> Device:
    """The first CUDA device that torch could use here, else the CPU."""
    if (installed_version("torch") or "").endswith("+cpu"):
        return cpu_device()
    return next(iter(cuda_devices()), cpu_device())


@cache
def cpu_device() -> Device:
    """This machine's CPU, with the machine's memory."""
    memory = None
    with suppress(ValueError, OSError, AttributeError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device("cpu", memory=memory, name=_cpu_name())


@cache
def cuda_devices() -> tuple[Device, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves visible, in its order. None without a driver.

    Indices count by PCI bus, as NVML does. CUDA does so under CUDA_DEVICE_ORDER=PCI_BUS_ID. On machines with GPUs of
    one kind the two orders agree.
    """
    with _nvml() as nvml:
        return tuple(_visible(nvml)) if nvml else ()


@cache
def driver_version() -> str | None:
    """The version of the NVIDIA driver, or None without one."""
    with _nvml() as nvml:
        return str(nvml.nvmlSystemGetDriverVersion()) if nvml else None


@contextmanager
def _nvml() -> Iterator[Any]:
    """The pynvml module, initialised, or None without the module or a driver."""
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _visible(nvml: Any) -> Iterator[Device]:
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    every = [str(index) for index in range(nvml.nvmlDeviceGetCount())]
    for text in every if wanted is None else wanted.split(","):
        try:
            name = text.strip()
            by_index = name.isdecimal()
            handle = nvml.nvmlDeviceGetHandleByIndex(int(name)) if by_index else nvml.nvmlDeviceGetHandleByUUID(name)
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
            memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
            yield Device("cuda", (major, minor), memory, str(nvml.nvmlDeviceGetName(handle)))
        except nvml.NVMLError:
            # CUDA too stops at the first entry that it does not know.
            return


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine() or "CPU"
