"""Timing: exactly the work, all samples kept.

CPUs are timed with the monotonic clock; CUDA devices with events around each call, after the L2 cache was flushed.
Warm-up goes on until two calls in a row differ by less than WARM, and ends after WARM_UP calls at the latest.
Sampling stops when SAMPLES are taken, or when the time budget is spent and at least LEAST are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import median

import torch

__all__ = ["Timing", "time_calls"]

WARM = 0.1
WARM_UP = 10
SAMPLES = 50
LEAST = 3
_FLUSH_BYTES = 2**28  # well beyond any L2


@dataclass(frozen=True)
class Timing:
    """Samples of one call.

    Attributes:
        samples: Seconds of each timed call, in order.
        warm_up: Seconds of each call before them, in order.
    """

    samples: tuple[float, ...]
    warm_up: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median sample, in seconds."""
        return median(self.samples)


def time_calls(call: Callable[[], object], device: torch.device, budget: float) -> Timing:
    """Times a call.

    Args:
        call: The work, and nothing else.
        device: Where it runs.
        budget: Seconds after which no further sample is taken.
    """
    once = _on_cuda if device.type == "cuda" else _on_cpu
    warm_up = [once(call)]
    while len(warm_up) < WARM_UP:
        warm_up.append(once(call))
        if abs(warm_up[-1] - warm_up[-2]) < WARM * warm_up[-1]:
            break
    samples: list[float] = []
    while len(samples) < SAMPLES and (len(samples) < LEAST or sum(samples) < budget):
        samples.append(once(call))
    return Timing(tuple(samples), tuple(warm_up))


def _on_cpu(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _on_cuda(call: Callable[[], object]) -> float:
    _flush_buffer().zero_()
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / 1e3


@cache
def _flush_buffer() -> torch.Tensor:
    return torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")
