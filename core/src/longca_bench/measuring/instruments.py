"""Instruments: the clock, the gauge of memory and the announcements that every measurement uses."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from longca import plugins
from longca_bench.measuring.timing import BUDGET, Timing, time_calls
from longca_bench.measuring.workers import Workers
from longca_bench.measuring.world import World

__all__ = ["Instruments"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class Instruments:
    """The instruments of one rank.

    Attributes:
        world: The ranks that measure together.
        workers: The workers that run kernels.
        registry: The registry of kernels and strategies.
        announce: Gets the name of each phase as it begins.
        budget: Seconds of samples of each call.
    """

    world: World
    workers: Workers
    registry: plugins.Registry
    announce: Callable[[str], None] = lambda name: None
    budget: float = BUDGET

    def clocked(self, call: Callable[[], _T]) -> tuple[_T, float]:
        """The result of a call, and its seconds by the host's clock."""
        self.world.synchronize()  # earlier work of the device is not part of the call
        start = time.perf_counter()
        result = call()
        self.world.synchronize()
        return result, time.perf_counter() - start

    def timed(self, call: Callable[[], object], inspect: Callable[[object], None] | None = None) -> Timing:
        """The times of a call that all ranks make."""
        return time_calls(call, self.world, self.budget, inspect)

    def peaks(self, call: Callable[[], object]) -> tuple[int, ...]:
        """Each rank's peak of memory during one call, in bytes above the memory before it. Empty on CPUs."""
        if self.world.device.type == "cpu":
            return ()
        self.world.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        self.world.synchronize()
        return tuple(self.world.everyone(torch.cuda.max_memory_allocated() - before))
