"""Commands to a worker, and the worker's answers.

A command is a name with arguments (`WorkerProcess`, `RankWorker`). Commands are pickled, because a worker trusts the
process that started it. Answers are JSON of a bounded length with a fixed form: the worker runs code of plugins, and
whatever it says is data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from longca.manifests import Direction, Transport
from longca_bench.measuring.arena import Where

__all__ = [
    "ALL",
    "COMPUTE",
    "LONGEST",
    "MOST_BYTES",
    "WHOLE",
    "Answer",
    "Call",
    "Mode",
    "PlanFacts",
    "Returned",
    "Traffic",
    "WorkerSetup",
]

#: The names of a recorded call, of its computing and of all its collectives, beside the kinds of its collectives.
WHOLE, COMPUTE, ALL = "whole", "compute", "all"
#: Bytes of the longest answer.
LONGEST = 2**20
#: Bytes that a plan or a peak may claim. No machine has more.
MOST_BYTES = 2**50

_Word = Annotated[str, Field(max_length=400)]
_Size = Annotated[int, Field(ge=0, le=2**62)]
_Bytes = Annotated[int, Field(ge=0, le=MOST_BYTES)]
_Kind = Literal["p2p", "all_to_all", "all_gather", "reduce_scatter", "all_reduce", "broadcast", "push"]
_Seconds = Annotated[float, Field(ge=0.0, le=1e7, allow_inf_nan=False)]


@dataclass(frozen=True)
class WorkerSetup:
    """The first data of a worker: its device as torch writes it, and the distributions whose plugins it loads."""

    device: str
    distributions: frozenset[str]
    memory: int | None = None


class Mode(StrEnum):
    """The quantity that a run measures."""

    PLAIN = "plain"
    #: The seconds of the call on the device.
    TIMED = "timed"
    #: The seconds of the call by the host's clock, with launching.
    WALL = "wall"
    #: Nothing. Several calls in a row keep a CUDA device busy, before the inputs of a timed call change.
    LOAD = "load"
    #: The peak of memory.
    PEAK = "peak"


@dataclass(frozen=True)
class Call:
    """A call of a kernel, or of a strategy with this rank's tensors, which come by their names in the contract's order.

    Results land in `landing`, or in the buffers that a kernel gets. The kernel's name is empty for a strategy.
    `abreast`, `keeps` and `times` are as `RemoteKernel.run` and `RemoteStrategy.call` have them.
    """

    direction: Direction
    mode: Mode
    tensors: dict[str, Where]
    landing: dict[str, Where]
    buffers: dict[str, Where] = field(default_factory=dict)
    kernel: str = ""
    plan: int = 0
    abreast: bool = False
    keeps: bool = False
    times: int = 1


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Returned(_Data):
    """One of the objects that a kernel returned. The shape is empty for anything but a tensor.

    `fault` says in a clause why no result may be like this. `is_in` is the buffer that has the result, and `shares` the
    argument or the earlier result with which it shares memory.
    """

    kind: _Word
    shape: Annotated[list[_Size], Field(max_length=32)] = []
    stride: Annotated[list[int], Field(max_length=32)] = []
    dtype: _Word = ""
    device: _Word = ""
    fault: _Word = ""
    is_in: _Word = ""
    shares: _Word = ""


class Traffic(_Data):
    """Collectives of a call on one rank: their number, nccl-tests' bytes, and bytes that leave the rank."""

    calls: _Size = 0
    size: _Size = 0
    sent: _Size = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(calls=self.calls + other.calls, size=self.size + other.size, sent=self.sent + other.sent)


class PlanFacts(_Data):
    """The facts that a worker says of a plan. Bytes are those of its tensors. `fault` is its error in a clause."""

    form: _Word = ""
    form_text: _Word = ""
    backend: _Word = ""
    metadata_bytes: _Bytes = 0
    fault: _Word = ""


class Answer(_Data):
    """The answer to a command by its number: `ended` right after a timed call, and then `done`.

    `error` is the exception that the plugin raised, and `fault` the error of the results together. After `lost` the
    worker can do nothing more. `changed` names global state. `late` is the seconds that the device went on after the
    call, and `peak` bytes.
    """

    number: _Size = 0
    said: Literal["ended", "done"] = "done"
    error: Annotated[str, Field(max_length=4000)] = ""
    exhausted: bool = False
    lost: bool = False
    returned: Annotated[list[Returned], Field(max_length=8)] = []
    fault: _Word = ""
    changed: Annotated[list[_Word], Field(max_length=64)] = []
    seconds: _Seconds | None = None
    late: _Seconds = 0.0
    peak: _Bytes | None = None
    plan: PlanFacts | None = None
    methods: Annotated[dict[_Word, Annotated[list[_Word], Field(max_length=64)]], Field(max_length=8)] = {}
    layout_seconds: _Seconds | None = None
    moved_by: Annotated[dict[_Word, Transport], Field(max_length=8)] = {}
    kept: bool = False
    traffic: Annotated[dict[_Kind, Traffic], Field(max_length=8)] = {}
