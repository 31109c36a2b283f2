"""Timing: warm-up, sampling, the clock and the flush of the L2 cache, for one device and for several ranks.

CPUs are timed with the monotonic clock. CUDA devices are timed with events around each call, after the L2 cache was
flushed. The device is busy with flushing it while the host launches the call. Warm-up ends when two calls in a row
differ by less than WARM, and after WARM_UP calls at the latest. Sampling ends after SAMPLES calls, or after at least
LEAST calls when the time budget is spent.

Ranks line up at a barrier before each call. A sample is the time on the slowest rank, so all ranks stop after the same
call. Ranks tell each other their times after several calls (`World.batch`): a device that rests after each call has
higher clocks, and would be faster than the one device that it is compared with. On one device there is no barrier.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import torch

from longca_bench.measuring.world import BUDGET, World

__all__ = [
    "LEAD",
    "LEAST",
    "SAMPLES",
    "WARM",
    "WARM_UP",
    "Timing",
    "calls_in_a_row",
    "flush_l2",
    "loading_calls",
    "take_samples",
    "take_turns",
    "time_calls",
    "timed_call",
    "wall_call",
]

WARM = 0.1
WARM_UP = 10
#: The most samples by the device. On a CUDA device other calls come before each one.
SAMPLES = {"cpu": 30, "cuda": 10}
LEAST = 3
#: Seconds for which a CUDA device is busy before a timed call. So a call that is launched in less has no launching in
#: its time, as in a model whose host is ahead of the device.
LEAD = 5e-4
#: Bytes that the flush writes, more than any L2 cache has.
FLUSH_BYTES = 2**28
#: Seconds of a kernel's own calls before a timed call on a CUDA device, and those of a call that needs none before it.
#: A device that rests between calls has higher clocks than in calls in a row, and each kernel draws another power.
LOAD, LONG = 5e-2, 2.5e-1

_Times = tuple[float, ...]
_Call = Callable[[], object]
_Once = Callable[[], tuple[float, object]]


@dataclass(frozen=True)
class Timing:
    """Seconds of each timed call on each rank, [ranks][calls], and of the warm-up before them on the slowest rank."""

    ranks: tuple[_Times, ...]
    warm_up: _Times

    @property
    def samples(self) -> _Times:
        """Seconds of each timed call on the slowest rank, in order."""
        return tuple(map(max, zip(*self.ranks, strict=True)))

    @property
    def median(self) -> float:
        """The median sample, in seconds."""
        return median(self.samples)

    @property
    def rank_medians(self) -> _Times:
        """Each rank's own median."""
        return tuple(map(median, self.ranks))


def time_calls(call: _Call, world: World, budget: float = BUDGET) -> Timing:
    """Times a call that all ranks of a world make, each in this process, as `take_samples` does."""
    return take_samples(lambda: timed_call(call, world), world, budget)


def take_samples(
    once: _Once,
    world: World,
    budget: float = BUDGET,
    inspect: Callable[[Any], None] | None = None,
) -> Timing:
    """Warms a call up and takes its samples, with all ranks of a world.

    `once` makes the call, and returns its seconds on this rank and its result. `inspect` gets each result, of the
    warm-up too, outside the timed region. After the budget of seconds no further call is made.
    """

    def sample() -> tuple[float, object]:
        seconds, result = once()
        if inspect is not None:
            inspect(result)
        return seconds, None

    return take_turns({"": sample}, world, budget)[""]


def take_turns(parts: Mapping[str, _Once], world: World, budget: float) -> dict[str, Timing]:
    """Warms several calls up and takes their samples by turns, with all ranks of a world. Every call has as many
    samples.

    Drift of clocks and temperature meets all of them alike. The budget is seconds of samples of each call, on average,
    after which there is no further round.
    """
    warm_up = {name: _warmed_up(once, world) for name, once in parts.items()}
    rounds: dict[str, list[_Times]] = {name: [] for name in parts}
    before = sum(each[-1] for each in warm_up.values())

    def taken() -> list[float]:
        return [sum(map(max, each)) for each in zip(*rounds.values(), strict=True)]

    while (count := _calls_to_come(taken(), before, len(parts) * budget, world)) > 0:
        mine = [[once()[0] for once in parts.values()] for _ in range(count)]
        for each in zip(*world.everyone(mine), strict=True):
            for times, seconds in zip(rounds.values(), zip(*each, strict=True), strict=True):
                times.append(seconds)
    return {name: Timing(tuple(zip(*times, strict=True)), tuple(warm_up[name])) for name, times in rounds.items()}


def _warmed_up(once: _Once, world: World) -> list[float]:
    """Makes a call until it takes as long as before. The seconds of each time, on the slowest rank."""
    warm_up: list[float] = []
    while len(warm_up) < WARM_UP:
        warm_up.append(max(world.everyone(once()[0])))
        if len(warm_up) > 1 and abs(warm_up[-1] - warm_up[-2]) < WARM * warm_up[-1]:
            break
    return warm_up


def timed_call(call: _Call, world: World) -> tuple[float, object]:
    """Makes a call once, and returns its seconds on the device and its result."""
    if world.device.type == "cuda":
        return _on_cuda(call, world)
    world.line_up()
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def wall_call(call: _Call, world: World) -> tuple[float, object]:
    """Makes a call once, and returns a caller's seconds from an idle device to the result, with launching."""
    if world.device.type == "cuda":
        flush_l2()
    world.synchronize()
    start = time.perf_counter()
    result = call()
    world.synchronize()
    return time.perf_counter() - start, result


@cache
def _seconds_of(work: Callable[[], None]) -> float:
    """Seconds that some work takes on the CUDA device."""
    work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return max(1e-5, begin.elapsed_time(end) / 1e3)


def flush_l2() -> None:
    """Empties the L2 cache of the CUDA device."""
    _flush_buffer().zero_()


@cache
def _flush_buffer() -> torch.Tensor:
    return torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")


def loading_calls(seconds: float, pace: float = 0.0) -> int:
    """The number of calls before a timed call on a CUDA device, by the last one's seconds and the host's pace.

    A host whose pace, in seconds a call, is slower than the device makes fewer: they take it at most twice LOAD.
    """
    return math.ceil(LOAD / max(seconds, pace / 2)) if 0 < seconds < LONG else 0


def calls_in_a_row(call: _Call, times: int, world: World) -> object:
    """Makes calls that load a CUDA device, waits for the device, and returns the last result.

    A kernel whose host takes long, or that says too little of its time, makes fewer: they end after twice LOAD. Ranks
    make all of them, because they wait for each other.
    """
    end, result, done = time.perf_counter() + 2 * LOAD, None, torch.cuda.Event()
    for _ in range(times):
        flush_l2()
        result = call()
        done.record()
        if world.size == 1 and time.perf_counter() > end:
            break
    world.wait(done)
    return result


def _calls_to_come(taken: list[float], before: float, budget: float, world: World) -> int:
    """The number of calls before ranks tell each other their times again. Every rank finds the same number."""
    least, left, most = LEAST - len(taken), budget - sum(taken), SAMPLES[world.device.type]
    if len(taken) >= most or (least <= 0 and left <= 0):
        return 0
    seconds = median(taken) if taken else before
    fitting = math.ceil(min(left / seconds, most)) if left > 0 and seconds else 0
    return min(max(fitting, least, 1), world.batch, most - len(taken))


def _on_cuda(call: _Call, world: World) -> tuple[float, object]:
    """Events around the call. The flushes before it keep the device busy until the call is launched."""
    for _ in range(math.ceil(LEAD / _seconds_of(flush_l2))):
        flush_l2()
    world.line_up()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    result = call()
    end.record()
    world.wait(end)
    return begin.elapsed_time(end) / 1e3, result
