"""Turns: subjects timed one after another, a few calls each, round after round, so that drift meets all of them alike.

A call is timed behind a barrier on the device, by events on each rank, and takes as long as on the slowest of them.
Whoever is not settled yet takes further turns, since some compile anew at their tenth call; the last turns count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from peer_subjects import Alone, Ranks, Subject

from longca_bench.measuring.timing import WARM, WARM_UP, flush_l2

__all__ = ["DIRECTIONS", "ROUNDS", "Turns", "take_turns"]

#: Turns that count, and most of all; one is settled where the medians of those that count differ by less than SETTLED.
ROUNDS, MOST_ROUNDS, SETTLED = 3, 8, 0.25
#: Timed calls of a turn, at least and at most.
LEAST, MOST = 3, 7
#: Seconds of calls that come before those that are timed, so that clocks are those of sustained work.
SUSTAINED = 0.1
DIRECTIONS = ("forward", "backward")


class Turns:
    """One subject's turns, which all ranks take.

    `taken` has the seconds of each timed call on the slowest rank, by direction and turn. `peaks` has each rank's peak
    of allocated memory during a call, above what was there before it. It is empty on CPUs. `failure` is what the last
    turn raised.
    """

    def __init__(self, subject: Subject | Alone, ranks: Ranks) -> None:
        self.subject, self._ranks = subject, ranks
        self.taken: dict[str, list[list[float]]] = {direction: [] for direction in DIRECTIONS}
        self.peaks: dict[str, list[int]] = {direction: [] for direction in DIRECTIONS}
        self.failure: str | None = None
        self._last: dict[str, float] = {}

    def samples(self, direction: str) -> list[float]:
        """Seconds of each timed call of the turns that count."""
        return [seconds for turn in self.taken[direction][-ROUNDS:] for seconds in turn]

    def median(self, direction: str) -> float:
        """The median of a direction's samples, in seconds."""
        return median(self.samples(direction))

    @property
    def settled(self) -> bool:
        """Whether the turns that count are there, and agree; all ranks find the same."""
        medians = [[median(turn) for turn in turns[-ROUNDS:]] for turns in self.taken.values()]
        agree = all(len(each) == ROUNDS and max(each) <= (1 + SETTLED) * min(each) for each in medians)
        return agree or self.failure is not None

    def take(self, budget: float) -> None:
        """One turn: the forward, and the backward of the last one's graph, each for about so many seconds."""
        if self.failure is None:
            _, self.failure = self._ranks.attempt(partial(self._take, budget))

    def _take(self, budget: float) -> None:
        with self.subject.around():
            kept = self._direction("forward", self.subject.forward, budget)
            self._direction("backward", partial(self.subject.backward, kept), budget)

    def _direction(self, direction: str, call: Callable[[], Any], budget: float) -> Any:
        if not self.taken[direction]:
            self._last[direction] = self._warm_up(direction, call)
        last = self._last[direction]
        self._calls(call, min(MOST, int(SUSTAINED / last)))
        taken, result = self._calls(call, max(LEAST, min(MOST, int(budget / last))))
        self.taken[direction].append(taken)
        return result

    def _warm_up(self, direction: str, call: Callable[[], Any]) -> float:
        """Calls until two in a row take as long, and says how long; the last one's peak of memory is kept."""
        seconds: list[float] = []
        before, on_cuda = 0, self._ranks.device.type == "cuda"
        while len(seconds) < WARM_UP:
            if on_cuda:
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            seconds += self._calls(call, 1)[0]
            if len(seconds) > 1 and abs(seconds[-1] - seconds[-2]) < WARM * seconds[-1]:
                break
        if on_cuda:
            self.peaks[direction] = self._ranks.everyone(torch.cuda.max_memory_allocated() - before)
        return seconds[-1]

    def _calls(self, call: Callable[[], Any], count: int) -> tuple[list[float], Any]:
        """Seconds of so many calls in a row, each on the slowest rank, and the last one's result."""
        on_cuda = self._ranks.device.type == "cuda"
        seconds, result = (self._on_cuda if on_cuda else self._on_cpu)(call, count)
        return [max(each) for each in zip(*self._ranks.everyone(seconds), strict=True)], result

    def _on_cuda(self, call: Callable[[], Any], count: int) -> tuple[list[float], Any]:
        """All are launched before the first is waited for: as in training, the device never waits for the host.

        One more comes first and does not count, because the device waits for the host to launch it.
        """
        events, result = [], None
        for _ in range(1 + count):
            result = None  # before there is another one, which may need its memory
            flush_l2()
            self._ranks.line_up()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            result = call()
            end.record()
            events.append((begin, end))
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1e3 for begin, end in events[1:]], result

    def _on_cpu(self, call: Callable[[], Any], count: int) -> tuple[list[float], Any]:
        seconds, result = [], None
        for _ in range(count):
            self._ranks.line_up()
            start = time.perf_counter()
            result = call()
            seconds.append(time.perf_counter() - start)
        return seconds, result


def take_turns(everyone: Sequence[Turns], budget: float) -> None:
    """All take turns until each is settled, or has had most turns. `budget` is in seconds of a direction."""
    for _ in range(MOST_ROUNDS):
        for each in everyone:
            if not each.settled:
                each.take(budget / ROUNDS)
