"""Worlds: the ranks that measure together, seen from one of them, and its instruments. One device is a world of 1."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from longca_bench.measuring.messages import COMPUTING, PUSHING
from longca_bench.measuring.worker import Workers

__all__ = ["BUDGET", "Instruments", "Phases", "World"]

_T = TypeVar("_T")
#: Seconds of samples of a call.
BUDGET = 0.25


class World:
    """The world of one device, without a process group. `longca_bench.ranks.world.JobWorld` is that of ranks."""

    rank, size, batch = 0, 1, 1

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def everyone(self, value: _T, kind: Any = Any) -> list[_T]:
        """Every rank's value, on every rank. It is also a barrier of the hosts. Values of a type travel as JSON."""
        return [value]

    def meet(self) -> None:
        """Takes the memory that later exchanges need. Inputs and references may fill the device by then."""

    def line_up(self) -> None:
        """A barrier of the devices: work that is launched after it begins when all ranks have reached it."""

    def synchronize(self) -> None:
        """Waits until this rank's device has finished all its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def wait(self, event: torch.cuda.Event) -> None:
        """Waits until this rank's device has reached an event."""
        event.synchronize()

    def give_back(self) -> None:
        """Gives memory that this process does not use back to the device, where another process needs it."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def all_to_all(self, sent: Tensor, sizes_out: list[int], sizes_in: list[int]) -> Tensor:
        """Exchanges parts of flat tensors: those for each rank, and those from each, in the order of ranks."""
        return sent


class Phases:
    """Tells each phase as it begins, and remembers the last one."""

    def __init__(self, tell: Callable[[str], None] = lambda name: None) -> None:
        self.last = self._told = "start"
        self._tell = tell

    def __call__(self, name: str) -> None:
        """Begins a phase."""
        self.last = self._told = name
        self._tell(name)

    def inside(self, method: str) -> None:
        """Notes the kernel's method that a worker is inside, or its pushes. The phase goes on after an empty text."""
        name = method if method == PUSHING else f"{COMPUTING} {method}" if method else self.last
        if name != self._told:
            self._told = name
            self._tell(name)


@dataclass(frozen=True)
class Instruments:
    """The instruments of one rank: ranks, workers, the phases, and the seconds of samples of each call."""

    world: World
    workers: Workers
    announce: Phases = field(default_factory=Phases)
    budget: float = BUDGET

    def clocked(self, call: Callable[[], _T]) -> tuple[_T, float]:
        """The result of a call, and its seconds by the host's clock."""
        self.world.synchronize()  # earlier work of the device is not part of the call
        start = time.perf_counter()
        result = call()
        self.world.synchronize()
        return result, time.perf_counter() - start
