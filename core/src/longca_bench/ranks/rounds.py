"""Rounds: calls that all ranks make together, each timed on every rank.

All ranks line up at a barrier before each call. A round takes as long as on its slowest rank; warm-up and sampling stop
by the same rules as on one device, and on all ranks after the same round. Times are told after some rounds, not after
each: a device that rests between calls has higher clocks, and would be faster than the one device it is held against.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from longca_bench.measuring.timing import LEAST, SAMPLES, WARM, WARM_UP, flush_l2
from longca_bench.ranks.world import World

__all__ = ["Rounds", "time_rounds"]

_Times = tuple[float, ...]

#: Rounds after which ranks tell each other their times, at most.
_TOGETHER = 8


@dataclass(frozen=True)
class Rounds:
    """The times of rounds.

    Attributes:
        ranks: Seconds of each timed call on each rank: [ranks][calls].
        warm_up: Seconds of the calls before them, on the slowest rank.
        last: What the last call returned on this rank.
    """

    ranks: tuple[_Times, ...]
    warm_up: _Times
    last: Any

    @property
    def samples(self) -> _Times:
        """Seconds of each timed call on the slowest rank."""
        return tuple(map(max, zip(*self.ranks, strict=True)))

    @property
    def median(self) -> float:
        """The median of them."""
        return median(self.samples)

    @property
    def rank_medians(self) -> _Times:
        """The median of each rank's own."""
        return tuple(map(median, self.ranks))


def time_rounds(call: Callable[[], object], world: World, budget: float) -> Rounds:
    """Times a call that all ranks make.

    Args:
        call: This rank's work, and nothing else.
        world: The ranks.
        budget: Seconds after which no further round is begun.
    """
    warm_up: list[float] = []
    while len(warm_up) < WARM_UP:
        warm_up.append(max(world.everyone(_once(call, world)[0])))
        if len(warm_up) > 1 and abs(warm_up[-1] - warm_up[-2]) < WARM * warm_up[-1]:
            break
    rounds: list[_Times] = []
    last: object = None
    while (count := _next_rounds([max(each) for each in rounds], warm_up[-1], budget)) > 0:
        mine: list[float] = []
        for _ in range(count):
            last = None  # before there is another one, which may need its memory
            seconds, last = _once(call, world)
            mine.append(seconds)
        rounds += zip(*world.everyone(mine), strict=True)
    return Rounds(tuple(zip(*rounds, strict=True)), tuple(warm_up), last)


def _next_rounds(taken: list[float], before: float, budget: float) -> int:
    """How many rounds come next, by what those so far took; every rank finds the same.

    Args:
        taken: Seconds of each round so far.
        before: Seconds of the last call of the warm-up.
        budget: Seconds after which none is begun.
    """
    least, left = LEAST - len(taken), budget - sum(taken)
    if len(taken) >= SAMPLES or (least <= 0 and left <= 0):
        return 0
    fitting = math.ceil(left / (median(taken) if taken else before)) if left > 0 else 0
    return min(max(fitting, least, 1), _TOGETHER, SAMPLES - len(taken))


def _once(call: Callable[[], object], world: World) -> tuple[float, object]:
    if world.device.type == "cuda":
        return _on_cuda(call, world)
    world.line_up()
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def _on_cuda(call: Callable[[], object], world: World) -> tuple[float, object]:
    """Events around the call, behind the barrier on the device; the flush keeps it busy until the call is launched."""
    flush_l2()
    world.line_up()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    result = call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3, result
