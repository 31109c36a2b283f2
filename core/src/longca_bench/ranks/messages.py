"""Messages between the leader of a job and its members."""

from __future__ import annotations

from dataclasses import dataclass

from longca_bench.measuring.messages import Result, Setup
from longca_bench.suites.tasks import Task

__all__ = ["Assignment", "RankResult"]


@dataclass(frozen=True)
class Assignment:
    """The next task of all ranks.

    Attributes:
        setup: The setup of their workers, without a place.
        world: Number of the world to do it in. A new number makes members start new workers.
        task: The task.
    """

    setup: Setup
    world: int
    task: Task


@dataclass(frozen=True)
class RankResult:
    """The result of a task on one rank.

    Attributes:
        result: The worker's result, or None if it was stopped for another rank's failure or for the deadline.
        phase: The worker's last phase.
        phases: Number of phases that it had begun.
    """

    result: Result | None
    phase: str
    phases: int
