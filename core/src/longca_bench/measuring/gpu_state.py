"""The state of a GPU: clocks, power, temperature, throttle reasons and other processes."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import torch

__all__ = ["gpu_state"]


def gpu_state() -> dict[str, Any] | None:
    """The current GPU's state by NVML, or None without a GPU.

    Returns:
        sm_clock and memory_clock in MHz, power in W, temperature in °C, `throttle` as the names of the active reasons,
        and `others`, the number of other processes on the GPU. Or `error`, if NVML fails.
    """
    if not torch.cuda.is_available():
        return None
    import pynvml  # type: ignore[import-untyped]

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties().uuid}")
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        state: dict[str, Any] = {
            "sm_clock": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "memory_clock": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            "power": pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "temperature": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
            "throttle": _reasons(pynvml, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
            "others": sum(process.pid != os.getpid() for process in processes),
        }
    except pynvml.NVMLError as error:
        return {"error": str(error)}
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    return state


def _reasons(pynvml: Any, active: int) -> list[str]:
    """Names of the active throttle reasons, without `GpuIdle`, which is no throttling."""
    prefix = "nvmlClocksThrottleReason"
    names = {name.removeprefix(prefix): getattr(pynvml, name) for name in dir(pynvml) if name.startswith(prefix)}
    ignored = ("GpuIdle", "None", "All")
    return sorted(name for name, bit in names.items() if name not in ignored and bit & active)
