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

__all__ = ["Timing", "flush_l2", "time_calls"]

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
        wall: Seconds by the host's clock, from before a call is made until its result is there: of the same calls on
            CPUs, of LEAST further ones on CUDA devices.
        warm_up: Seconds of each call before them, in order.
    """

    samples: tuple[float, ...]
    wall: tuple[float, ...]
    warm_up: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median sample, in seconds."""
        return median(self.samples)


def time_calls(
    call: Callable[[], object],
    device: torch.device,
    budget: float,
    inspect: Callable[[object], None] = lambda result: None,
) -> Timing:
    """Times a call.

    Args:
        call: The work, and nothing else.
        device: Where it runs.
        budget: Seconds after which no further sample is taken.
        inspect: Given what each timed call returned, outside the timed region.
    """
    once = _on_cuda if device.type == "cuda" else _on_cpu
    warm_up = [once(call)[0]]
    while len(warm_up) < WARM_UP:
        warm_up.append(once(call)[0])
        if abs(warm_up[-1] - warm_up[-2]) < WARM * warm_up[-1]:
            break
    samples: list[float] = []
    while len(samples) < SAMPLES and (len(samples) < LEAST or sum(samples) < budget):
        seconds, result = once(call)
        inspect(result)
        samples.append(seconds)
    wall = [_by_the_host(call, device) for _ in range(LEAST)] if device.type == "cuda" else samples
    return Timing(tuple(samples), tuple(wall), tuple(warm_up))


def _on_cpu(call: Callable[[], object]) -> tuple[float, object]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def _on_cuda(call: Callable[[], object]) -> tuple[float, object]:
    """Events around the call; the flush before it keeps the device busy until the call is launched."""
    flush_l2()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    result = call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3, result


def _by_the_host(call: Callable[[], object], device: torch.device) -> float:
    """From an idle device to the result: what a caller waits, launching included."""
    flush_l2()
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    call()
    torch.cuda.synchronize(device)
    return time.perf_counter() - start


def flush_l2() -> None:
    """Empties a CUDA device's L2 cache of what was there."""
    _flush_buffer().zero_()


@cache
def _flush_buffer() -> torch.Tensor:
    return torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")
