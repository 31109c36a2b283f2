"""Trials: a case made ready on a rank, which can be verified, called, and negated.

After timing, a trial is verified again with v negated in place. Attention is linear in v, so the references follow
from algebra: out, dq and dk change sign, and dv and lse do not. This finds a kernel that keeps a result by the address
of its inputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from longca.manifests import Problem
from longca_bench.measuring.timing import Timing
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.reference import Reference
from longca_bench.verification.verify import Verification

__all__ = ["Trial"]

_CHANGE_SIGN = ("out", "dq", "dk")


class Trial(ABC):
    """One case, made ready on one rank.

    Args:
        problem: The problem of all ranks together.
        inputs: This rank's tensors. No other trial uses their memory.
        expected: The reference, or None if this rank verifies no head.

    Attributes:
        fields: The fields of the record that planning gave.
        inspect: Gets the result of each timed call. None if the last result is verified instead.
    """

    fields: dict[str, Any]
    inspect: Callable[[Any], None] | None = None

    def __init__(self, problem: Problem, inputs: Inputs, expected: Reference | None) -> None:
        self.problem, self.inputs, self.expected = problem, inputs, expected

    @property
    def is_forward(self) -> bool:
        """Whether the forward is measured, and not the backward."""
        return self.problem.direction == "forward"

    @abstractmethod
    def verify(self) -> Verification:
        """Verifies the direction, and keeps the forward's results for the calls that follow."""

    @abstractmethod
    def check_counts(self) -> Verification:
        """Verifies that with q = 0, exp(lse) is the number of keys that each query sees."""

    @abstractmethod
    def call(self) -> Any:
        """The work that is timed: the direction alone."""

    @abstractmethod
    def check_timed(self, last: Any) -> Verification:
        """Verifies the timed calls, after timing.

        Args:
            last: The result of the last call, or None if each was inspected.
        """

    @contextmanager
    def told(self) -> Iterator[None]:
        """Announces each call of the kernel, where ranks wait for each other."""
        yield

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

    def negate(self) -> None:
        """Negates v in place, and the reference with it."""
        self.inputs.v.neg_()
        if self.expected is not None:
            rows = {
                name: replace(row, value=-row.value) if name in _CHANGE_SIGN else row
                for name, row in self.expected.rows.items()
            }
            self.expected = replace(self.expected, rows=rows)
