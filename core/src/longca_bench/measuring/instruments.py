"""Instruments: the clock and the announcements that every measurement uses."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from longca_bench.measuring.messages import COMPUTING, PUSHING
from longca_bench.measuring.timing import BUDGET
from longca_bench.measuring.worker import Workers
from longca_bench.measuring.world import World

__all__ = ["Instruments", "Phases"]

_T = TypeVar("_T")


class Phases:
    """Tells each phase as it begins, and remembers it.

    Args:
        tell: Gets the name of each phase.

    Attributes:
        last: The last phase.
    """

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
    """The instruments of one rank.

    Attributes:
        world: The ranks that measure together.
        workers: The workers that run kernels.
        announce: Gets the name of each phase as it begins.
        budget: Seconds of samples of each call.
    """

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
