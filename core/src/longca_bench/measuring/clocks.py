"""Clocks: the samples of a worker, compared with the judge's own clock over the same calls.

The judge's clock runs from its command until the worker says that the call has ended, and on until the results are
there. It includes messages, the flush of the L2 cache, and copies of the results. Time for which the system gave the
judge or the worker no core does not count, as far as other processes or a quota took it: a worker's own threads may be
what kept it waiting. Other processes disturb some calls, so the lower quartile of the distances counts. It is that of
the shorter half of the samples: a clock that runs slow in most calls makes their median too.

At the end calls on inputs that the kernel has never met must be as fast as the samples. A call of a millisecond could
be hidden in what is allowed. On CPUs the judge's clock holds such calls in bursts: many in a row, with the messages of
one. On CUDA devices calls in a row are launched as fast as the host can, so a burst says nothing about a call there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from statistics import median

import torch

from longca_bench.measuring.heard import Heard
from longca_bench.measuring.processor import count_error, kept_from_us

__all__ = ["Clocks"]

#: Seconds beside a call that never count as hidden. On CUDA devices the flush is among them.
ALLOWED = {"cpu": 1e-3, "cuda": 3e-3}
#: Share of the sample that the clocks may be apart.
SHARE = 0.1
#: Round trips to a worker that messages may take.
ROUND_TRIPS = 8
#: Times the judge's own handling of the results that the worker's copies may take.
COPIES = 8
#: Most attempts to be as fast on new inputs, because other processes slow some down. A case is timed anew if none is.
#: Bursts of short calls take little time, so these have many.
ATTEMPTS, MANY_ATTEMPTS = 6, 12
#: The most calls of a burst.
MOST = 64
#: Seconds by which each pause between two attempts is longer than the one before.
PAUSE = 0.05
#: Bytes that the calls of a burst may take together.
MOST_BYTES = 2**28
#: Times the judge's own writing of a burst's results that the worker's copies of them may take.
BURST_COPIES = 4
#: Times as long as a sample that a call on new inputs may take while other processes compute.
SLOWED = 4.0
#: Seconds of waiting in each call that need no explanation: threads of a pool look for work for a while.
UNEXPLAINED = 5e-4
#: Seconds by which a single call on new inputs may always be slower than the samples. On CUDA devices a host launches
#: the many small parts of a short call, and its pace varies.
SLOWER = {"cpu": 5e-5, "cuda": 2e-4}


@dataclass(frozen=True)
class _Call:
    sample: float
    heard: Heard
    handling: float

    @property
    def waited(self) -> float:
        """Seconds without a core that the worker's own work does not explain."""
        return self.heard.done.excused(self.sample + COPIES * self.handling)  # the threads of a pool may copy results

    def ended(self, share: float = 1.0) -> float:
        """Seconds that the judge's clock is ahead when the call has ended.

        Args:
            share: Share of the longer waits that others explain.
        """
        return self.heard.ended.seconds - self.sample - _explained(self.heard.ended.excused(self.sample), share)

    def done(self, share: float = 1.0) -> float:
        """Seconds that the judge's clock is ahead when the results are there. The argument is that of `ended`."""
        return self.heard.done.seconds - self.sample - _explained(self.waited, share)


class Clocks:
    """The two clocks of a case.

    Args:
        device: The device.
        latency: Seconds of a round trip to the worker, before it had loaded a plugin.
        kept: The seconds for which the system kept cores from the judge and its workers since the clocks began, or None
            where it does not tell.
    """

    def __init__(self, device: torch.device, latency: float, kept: Callable[[], float | None] = lambda: None) -> None:
        self._device, self._latency, self._kept = device, latency, kept
        self._calls: list[_Call] = []
        self._share = 1.0

    @classmethod
    def begin(cls, device: torch.device, latency: float) -> Clocks:
        """Clocks that begin now, in the judge. Its workers are processes below it.

        Args:
            device: The device.
            latency: Seconds of a round trip to the worker, before it had loaded a plugin.
        """
        return cls(device, latency, kept_from_us((os.getpid(),)))

    def take(self, sample: float, heard: Heard, handling: float) -> None:
        """Notes a call.

        Args:
            sample: The worker's seconds of it.
            heard: The worker's answer.
            handling: Seconds in which the judge itself wrote tensors like the results.
        """
        self._calls.append(_Call(sample, heard, handling))
        self._share = self._explained_share()

    def _explained_share(self) -> float:
        """The share of the waiting that others explain, beyond what needs no explanation."""
        waited = sum(max(0.0, call.waited - UNEXPLAINED) for call in self._calls)
        if waited <= (off := count_error()) or (kept := self._kept()) is None:
            return 1.0
        return min(1.0, (kept + off) / waited)

    @property
    def allowed(self) -> float:
        """Seconds by which the judge's clock may be ahead when a call has ended."""
        return self._fixed + SHARE * self._sample

    def burst(self, nbytes: int) -> int:
        """Calls of a burst in which what is allowed is small, or 1 if the clocks hold single calls well enough.

        Args:
            nbytes: Bytes of the inputs and the results of a call.
        """
        if self._device.type != "cpu" or self._sample > 2 * self._fixed:
            return 1
        return max(1, min(MOST, 1 + int(4 * self._fixed / max(self._sample, 1e-9)), MOST_BYTES // nbytes))

    def hold(
        self,
        count: int,
        attempt: Callable[[], tuple[Heard, float]],
        is_disturbed: Callable[[], bool] = lambda: False,
        everywhere: Callable[[bool], bool] = bool,
        sample: float | None = None,
        attempts: int | None = None,
    ) -> str:
        """The objection of calls on new inputs to the samples, in a sentence, or an empty text.

        One attempt that is as fast as the samples is enough. A busy machine makes calls slow, so on CPUs one is enough
        that takes no more processor time while other processes compute, and at most SLOWED times as long: a kernel
        that sleeps takes no processor time. Without other processes, a kernel could let its threads spin in the
        samples. A call like the samples proves nothing once the kernel has seen new inputs.

        A worker may say too early that a call has ended, so the moment at which the results are there counts too. They
        may come as long after the end as those of the samples.

        Args:
            count: Calls of each attempt.
            attempt: Makes the calls. It returns the worker's answer, and the judge's seconds of writing their results.
            is_disturbed: Whether other processes have computed since the first attempt.
            everywhere: Whether an attempt was fast enough on all ranks, from whether it was so on this one.
            sample: Seconds of a sample, or None for the median of this rank's.
            attempts: The most attempts. None for those of a case.
        """
        sample, least, ours, theirs = sample or self._sample, SLOWER[self._device.type], inf, inf
        slower = (1 + 2 * SHARE) * sample
        busy = (1 + 2 * SHARE) * median(call.heard.done.computed for call in self._calls)
        landing = median(call.done() - call.ended() for call in self._calls)
        for number in range(attempts or (ATTEMPTS if count == 1 else MANY_ATTEMPTS)):
            time.sleep(PAUSE * number)  # other processes come and go
            heard, handling = attempt()
            ended = heard.ended.seconds - heard.ended.excused(count * sample)
            done = heard.done.seconds - heard.done.excused(count * sample + COPIES * handling)
            took = max(ended, done - landing) - (BURST_COPIES * handling if count > 1 else 0.0)
            said = heard.answer.seconds or 0.0
            is_fast = took <= self._fixed + count * slower and said <= slower + least
            took_no_more = count == 1 and self._device.type == "cpu" and 0.0 < heard.done.computed <= busy
            took_no_more &= took <= self._fixed + SLOWED * sample
            if everywhere(is_fast or (took_no_more and is_disturbed())):
                return ""
            ours, theirs = min(ours, took), min(theirs, said)
        if theirs > slower + least:
            return f"a call on new inputs took {_ms(theirs)}, and a call that was timed {_ms(sample)}"
        calls = "a call" if count == 1 else f"{count} calls"
        return (
            f"the clocks disagree: a call took {_ms(sample)} by the worker's, and {calls} on new inputs took "
            f"{_ms(ours)} by the judge's"
        )

    def fields(self) -> dict[str, float]:
        """The clocks for the record, in seconds: both sums, the distance of a call, and what is allowed."""
        return {
            "samples": sum(call.sample for call in self._calls),
            "judge": sum(call.heard.ended.seconds for call in self._calls),
            "distance": self._ended,
            "allowed": self.allowed,
        }

    def fault(self) -> str:
        """The disagreement of the clocks, in a sentence, or an empty text."""
        slow = next((call for call in self._calls if call.heard.ended.seconds < call.sample), None)
        if slow or self._ended > self.allowed:
            theirs = slow.sample if slow else self._sample
            ours = slow.heard.ended.seconds if slow else median(call.heard.ended.seconds for call in self._shorter)
            return (
                f"the clocks disagree: a call took {_ms(theirs)} by the worker's, and {_ms(ours)} by the "
                f"judge's, which may be ahead by {_ms(self.allowed)}"
            )
        done = _lower_quartile([call.done(self._share) for call in self._shorter])
        allowed = 2 * self.allowed + COPIES * median(call.handling for call in self._calls)
        if done > allowed:
            return f"the results of a call came {_ms(done)} after its end, and {_ms(allowed)} are allowed"
        return ""

    @property
    def _sample(self) -> float:
        return median(call.sample for call in self._calls)

    @property
    def _shorter(self) -> list[_Call]:
        """The calls that are at most as long as the median."""
        return [call for call in self._calls if call.sample <= self._sample]

    @property
    def _fixed(self) -> float:
        return ALLOWED[self._device.type] + ROUND_TRIPS * self._latency

    @property
    def _ended(self) -> float:
        return _lower_quartile([call.ended(self._share) for call in self._shorter])


def _explained(waited: float, share: float) -> float:
    """The seconds of a wait that do not count."""
    short = min(waited, UNEXPLAINED)
    return short + share * (waited - short)


def _lower_quartile(values: list[float]) -> float:
    return sorted(values)[len(values) // 4]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
