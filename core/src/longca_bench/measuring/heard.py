"""The answer of a worker to a command, with the moments at which the judge heard of it by its own clock."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from longca_bench.measuring.commands import Answer

__all__ = ["Heard", "Moment"]

_SPIN = 2e-3  # seconds for which the threads of a pool may look for work that does not come
_GRAIN = 1e-9  # seconds


@dataclass(frozen=True)
class Moment:
    """A moment after a command, by the judge's clock.

    Attributes:
        seconds: Seconds since the command.
        waited: Seconds of them for which the judge or the worker was ready to run and had no core.
        computed: Seconds that all threads of the worker and of the processes below it computed since the command, added
            up. Those of other processes are counted until the answer.
    """

    seconds: float = 0.0
    waited: float = 0.0
    computed: float = 0.0

    def excused(self, sample: float) -> float:
        """Seconds without a core that do not count. A worker's own work may not be what kept it waiting.

        Args:
            sample: Seconds in which the worker computed, as it says. Its threads may have been on all cores then.
        """
        cores = len(os.sched_getaffinity(0))
        return max(0.0, self.waited - max(0.0, self.computed - cores * (sample + _SPIN)))

    def with_computed(self, seconds: float) -> Moment:
        """The moment with further seconds that were computed until then."""
        return replace(self, computed=self.computed + seconds)


@dataclass(frozen=True)
class Heard:
    """A worker's answer, with the judge's clock.

    Attributes:
        answer: The answer.
        ended: When the worker said that the timed call had ended.
        done: When the worker answered.
    """

    answer: Answer
    ended: Moment
    done: Moment

    @property
    def sample(self) -> float:
        """Seconds of a timed call, as the worker says. A clock that stands still says some, for the other clock."""
        return max(self.answer.seconds or 0.0, _GRAIN)
