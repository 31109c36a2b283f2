"""The state of a GPU while it measures: clocks, power, temperature, what throttles it, and who else uses it."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import torch

__all__ = ["PEAKS", "gpu_state", "peak_tflops"]

#: Dense matrix products, in TFLOP/s, by the vendor's datasheets: what no attention can exceed.
PEAKS = {
    "H100 PCIe": {"bfloat16": 756.0, "float16": 756.0, "float32": 378.0, "float64": 51.0},
    "H100": {"bfloat16": 989.0, "float16": 989.0, "float32": 494.0, "float64": 67.0},
    "H200": {"bfloat16": 989.0, "float16": 989.0, "float32": 494.0, "float64": 67.0},
    "A100": {"bfloat16": 312.0, "float16": 312.0, "float32": 156.0, "float64": 19.5},
    "B200": {"bfloat16": 2250.0, "float16": 2250.0, "float32": 1100.0, "float64": 40.0},
}


def peak_tflops(device: str, dtype: str) -> float | None:
    """The peak of a device by its name; None where it is not known."""
    return next((peaks[dtype] for name, peaks in PEAKS.items() if name in device), None)


def gpu_state() -> dict[str, Any] | None:
    """What NVML says of the current GPU now; None where there is none, or no NVML.

    Returns:
        sm_clock and memory_clock in MHz, power in W, temperature in °C, `throttle` as the names of the reasons that
        are active, and `others`, the number of other processes on the GPU.
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
    """Names of the throttle reasons that are set, without `GpuIdle`, which is no throttling."""
    prefix = "nvmlClocksThrottleReason"
    names = {name.removeprefix(prefix): getattr(pynvml, name) for name in dir(pynvml) if name.startswith(prefix)}
    ignored = ("GpuIdle", "None", "All")
    return sorted(name for name, bit in names.items() if name not in ignored and bit & active)
