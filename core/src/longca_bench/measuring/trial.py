"""Trials: a case made ready on a rank, which can be verified, sampled, changed, and verified again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from longca.errors import LongCAError
from longca.manifests import Problem
from longca_bench.measuring.timing import Timing
from longca_bench.verification.findings import Finding, Verification
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.reference import Reference

__all__ = ["Trial", "WrongResultError"]


class WrongResultError(LongCAError):
    """A timed call is wrong.

    Attributes:
        found: The findings.
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("; ".join(map(str, findings)))
        self.found = Verification(tuple(findings))


class Trial(ABC):
    """One case, made ready on one rank.

    Args:
        problem: The problem of all ranks together.
        inputs: This rank's tensors. No other trial uses their memory.
        expected: The reference, or None if this rank verifies no head.

    Attributes:
        fields: The fields of the record that planning gave.
    """

    fields: dict[str, Any]

    def __init__(self, problem: Problem, inputs: Inputs, expected: Reference | None) -> None:
        self.problem, self.inputs, self.expected = problem, inputs, expected

    @property
    def is_forward(self) -> bool:
        """Whether the forward is measured, and not the backward."""
        return self.problem.direction == "forward"

    @abstractmethod
    def verify(self) -> Verification:
        """Verifies the direction, and keeps the forward's results for the calls that follow."""

    def verify_again(self) -> Verification:
        """Verifies the direction on changed inputs, after it was verified and timed."""
        self.change()
        return self.verify()

    @abstractmethod
    def check_counts(self) -> Verification:
        """Verifies that with q = 0, exp(lse) is the number of keys that each query sees."""

    @abstractmethod
    def sample(self) -> tuple[float, Any]:
        """The seconds and the results of the work that is timed: the direction alone.

        Raises:
            WrongResultError: The call is wrong.
        """

    @abstractmethod
    def inspect(self, results: Any) -> None:
        """Checks the results of a timed call, outside the timed region.

        Raises:
            WrongResultError: They are wrong.
        """

    @abstractmethod
    def change(self) -> None:
        """Changes the inputs, so that the next call is new work."""

    @abstractmethod
    def peaks(self) -> tuple[int, ...]:
        """Each rank's peak of memory during one call. Empty on CPUs."""

    def wall(self, timing: Timing) -> tuple[float, ...]:
        """Seconds by the host's clock, right after timing. Empty for several ranks.

        Args:
            timing: The times of the whole.
        """
        return ()

    def before_timing(self) -> dict[str, Any]:
        """Fields of the record that are measured before the whole is timed."""
        return {}

    def after_timing(self, timing: Timing, peaks: tuple[int, ...]) -> dict[str, Any]:
        """Fields of the record that are measured after the whole was timed.

        Args:
            timing: The times of the whole.
            peaks: Each rank's peak of memory.
        """
        return {}

    def suspicion(self, *, busy: bool) -> str:
        """The reason not to believe the times, in a sentence, or an empty text.

        Args:
            busy: Whether other processes used the machine.
        """
        return ""
