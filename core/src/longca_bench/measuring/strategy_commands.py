"""Commands of a rank to its worker, beside those that every worker knows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from longca.manifests import Direction, Layout, Problem, Transport
from longca_bench.measuring.arena import Where
from longca_bench.measuring.commands import Mode
from longca_bench.measuring.messages import Place
from longca_bench.suites.meshes import MeshAxes

__all__ = [
    "ALL",
    "COMPUTE",
    "WHOLE",
    "CallStrategy",
    "Join",
    "LoadStrategy",
    "Part",
    "PlanStrategy",
    "Record",
    "Repeat",
]

#: The names of a recorded call, of its computing and of all its collectives, beside the kinds of its collectives.
WHOLE, COMPUTE, ALL = "whole", "compute", "all"


@dataclass(frozen=True)
class Join:
    """A process group of workers to join.

    Attributes:
        place: The rank's place in the job.
        number: Number of the group in the ranks' world.
        marks: The descriptor of the memory of the worker's marks, in the process that started the worker.
    """

    place: Place
    number: int
    marks: int


@dataclass(frozen=True)
class LoadStrategy:
    """A strategy to import."""

    strategy: str


@dataclass(frozen=True)
class PlanStrategy:
    """A strategy's plan to make and to keep. The plan before it is not needed any more.

    Attributes:
        number: Number of the plan.
        kernel: Name of a loaded kernel.
        strategy: Name of a loaded strategy.
        mesh: Ranks along each axis.
        placement: The placement of the tokens.
        transport: The way to move tensors.
        problem: The problem of all ranks together.
        layout: The layout that the ranks have.
    """

    number: int
    kernel: str
    strategy: str
    mesh: MeshAxes
    placement: str
    transport: Transport
    problem: Problem
    layout: Layout


@dataclass(frozen=True)
class CallStrategy:
    """A call of a strategy, with this rank's tensors.

    Attributes:
        plan: Number of the plan.
        direction: The direction, alone.
        mode: The measured quantity.
        tensors: The arguments by their names.
        landing: Where results go, by their names.
        keeps: Whether a forward may keep tensors for the backward.
        times: Number of calls, in the mode `load`.
    """

    plan: int
    direction: Direction
    mode: Mode
    tensors: dict[str, Where]
    landing: dict[str, Where]
    keeps: bool = False
    times: int = 1


class Part(StrEnum):
    """A part of a call that can be repeated without the rest."""

    COMPUTING = "computing"
    COMMUNICATION = "communication"


@dataclass(frozen=True)
class Record:
    """A call of a strategy of which a part is noted, to repeat it.

    Attributes:
        call: The call.
        part: The part.
    """

    call: CallStrategy
    part: Part


@dataclass(frozen=True)
class Repeat:
    """A noted part to repeat.

    Attributes:
        what: WHOLE, COMPUTE, a kind of collectives, or `all` of them.
        load: Number of calls in a row that load the device. 0 makes one call, and times it.
    """

    what: str
    load: int = 0
