"""Clocks: the samples of a worker, compared with this process's own clock over the same calls.

This process's clock runs from its command until the worker says that the call has ended. It includes messages and the
flush of the L2 cache. Other processes disturb some calls, so the lower quartile of the distances counts, over the
shorter half of the samples: a clock that runs slow in most calls makes their median too.
"""

from __future__ import annotations

from statistics import median

import torch

__all__ = ["Clocks"]

#: Seconds beside a call that never count as hidden. On CUDA devices the flush is among them.
ALLOWED = {"cpu": 2e-3, "cuda": 4e-3}
#: Share of the sample that the clocks may be apart.
SHARE = 0.1
#: Times what is allowed that the clocks may be apart on a busy machine.
BUSY = 5.0
#: Seconds for which a CUDA device may go on after a call has ended, and calls of a case that may be later than that.
LATE, PAUSES = 1e-3, 1


class Clocks:
    """The two clocks of a case."""

    def __init__(self, device: torch.device) -> None:
        self._fixed = ALLOWED[device.type]
        self._calls: list[tuple[float, float]] = []
        self._late: list[float] = []

    def take(self, sample: float, seconds: float, late: float = 0.0) -> str:
        """Notes a call by both clocks. Returns the objection to a kernel whose device goes on, or an empty text."""
        self._calls.append((sample, seconds))
        self._late += [late] if late > LATE else []
        if late <= LATE or len(self._late) <= PAUSES:  # the host's own pause can make a single wait long
            return ""
        return (
            f"the device went on for {_ms(late)} after the call had ended, "
            f"and {len(self._late)} of {len(self._calls)} calls were late"
        )

    def fields(self) -> dict[str, float]:
        """The clocks for the record, in seconds: both sums, the distance of a call, and what is allowed."""
        return {
            "samples": sum(sample for sample, _ in self._calls),
            "judge": sum(seconds for _, seconds in self._calls),
            "distance": self._distance,
            "allowed": self._allowed,
        }

    def fault(self, *, busy: bool = False) -> str:
        """The disagreement of the clocks, in a sentence, or an empty text. A busy machine allows more."""
        ahead = next((call for call in self._calls if call[1] < call[0]), None)
        allowed = self._allowed * (BUSY if busy else 1.0)
        if ahead is None and self._distance <= allowed:
            return ""
        theirs, ours = ahead or (self._sample, median(seconds for _, seconds in self._shorter))
        return (
            f"the clocks disagree: a call took {_ms(theirs)} by the worker's, and {_ms(ours)} by the runner's, which "
            f"may be ahead by {_ms(allowed)}"
        )

    @property
    def _sample(self) -> float:
        return median(sample for sample, _ in self._calls)

    @property
    def _shorter(self) -> list[tuple[float, float]]:
        """The calls that are at most as long as the median."""
        return [call for call in self._calls if call[0] <= self._sample]

    @property
    def _allowed(self) -> float:
        return self._fixed + SHARE * self._sample

    @property
    def _distance(self) -> float:
        distances = sorted(seconds - sample for sample, seconds in self._shorter)
        return distances[len(distances) // 4]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
