"""What leader, members and workers say to each other."""

from __future__ import annotations

from dataclasses import dataclass

from longca.manifests import Device
from longca_bench.measuring.messages import Outcome
from longca_bench.suites.cases import Case

__all__ = ["COMPUTING", "Answer", "Assignment", "RankSetup", "Setup", "Task"]

#: How a phase begins in which a rank is inside a kernel, and not waiting for others.
COMPUTING = "kernel"


@dataclass(frozen=True)
class Setup:
    """What every rank is told once.

    Attributes:
        device: What it measures on.
        disabled: Plugins to leave out.
        with_backward: Lengths whose references need gradients.
        memory: Bytes that a worker may take; None for no limit.
    """

    device: Device
    disabled: frozenset[str]
    with_backward: frozenset[int]
    memory: int | None


@dataclass(frozen=True)
class RankSetup:
    """What a worker is told when it starts.

    Attributes:
        setup: What every rank is told.
        world: Which world it is of; each has a number of its own.
        rank: Its rank.
        size: Ranks.
        local_rank: Its place on this machine, and so its GPU.
        host: Where the job's store is.
        port: Its port there.
    """

    setup: Setup
    world: int
    rank: int
    size: int
    local_rank: int
    host: str
    port: int


@dataclass(frozen=True)
class Task:
    """A case as ranks take it.

    Attributes:
        case: The case.
        placed: The placement to measure: what `auto` comes to.
    """

    case: Case
    placed: str


@dataclass(frozen=True)
class Assignment:
    """What the leader has all ranks do next.

    Attributes:
        setup: What their workers are told, where they are not running yet.
        world: The world to do it in; where it is another than before, workers are started anew.
        task: The case.
    """

    setup: Setup
    world: int
    task: Task


@dataclass(frozen=True)
class Answer:
    """What came of a case on one rank.

    Attributes:
        outcome: As its worker says it; `stopped` where it was ended because of another rank's failure or the deadline.
        phase: What it was doing last.
        phases: How many phases it had begun.
    """

    outcome: Outcome
    phase: str
    phases: int
