"""The state of a GPU: clocks, power, temperature, throttle reasons, and other processes with their use of it."""

from __future__ import annotations

import os
from collections.abc import Collection
from functools import cache
from typing import Any

import torch

__all__ = ["gpu_clock", "gpu_state", "gpu_used_by_others"]

_PREFIX = "nvmlClocksThrottleReason"


def gpu_state(own: Collection[int] = ()) -> dict[str, Any] | None:
    """The current GPU by NVML: MHz, W, °C, active throttle reasons and the number of other processes; or `error`."""
    if not torch.cuda.is_available():
        return None
    import pynvml  # type: ignore[import-untyped]

    try:
        handle = _handle()
        return {
            **gpu_clock(),
            "memory_clock": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            "power": pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "temperature": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
            "others": len(_processes() - {os.getpid(), *own}),
        }
    except pynvml.NVMLError as error:
        return {"error": str(error)}


def gpu_clock() -> dict[str, Any]:
    """The current GPU's `sm_clock` in MHz, and `throttle`, the names of the active reasons. Nothing if NVML fails."""
    import pynvml

    try:
        handle = _handle()
        active = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        clock = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
    except pynvml.NVMLError:
        return {}
    return {"sm_clock": clock, "throttle": sorted(name for name, bit in _reasons().items() if bit & active)}


def gpu_used_by_others(own: Collection[int], since: float, *, worked: bool) -> float | None:
    """The share (0 to 1) of the current GPU's time that processes other than our own used, or None if NVML does not
    tell.

    NVML samples each process several times a second. The latest sample after `since` (seconds of the system's clock)
    counts. `worked` says that our own used the GPU: they are then among its processes, or NVML has other numbers for
    processes than this system, as in some containers.
    """
    import pynvml

    try:
        known = _processes()
        if worked and known.isdisjoint(own):
            return None
        if not known - set(own):
            return 0.0  # reading the use of each process takes 2 ms
        found = pynvml.nvmlDeviceGetProcessUtilization(_handle(), int(since * 1e6))
    except pynvml.NVMLError_NotFound:  # no process used it
        return 0.0
    except pynvml.NVMLError:
        return None
    latest = {each.pid: each for each in sorted(found, key=lambda each: each.timeStamp) if each.pid not in own}
    return min(1.0, sum(each.smUtil for each in latest.values()) / 100)


def _processes() -> set[int]:
    """The processes with a context on the current GPU."""
    import pynvml

    return {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(_handle())}


def _handle() -> Any:
    """NVML's handle on the current GPU."""
    return _handle_on(f"GPU-{torch.cuda.get_device_properties().uuid}")


@cache
def _handle_on(uuid: str) -> Any:
    """NVML stays open until the process ends, because opening it takes 10 ms."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByUUID(uuid)


@cache
def _reasons() -> dict[str, int]:
    """The bit of each throttle reason, without `GpuIdle`, which is no throttling."""
    import pynvml

    named = {name.removeprefix(_PREFIX): getattr(pynvml, name) for name in dir(pynvml) if name.startswith(_PREFIX)}
    return {name: bit for name, bit in named.items() if name not in ("GpuIdle", "None", "All")}
