"""Messages between the supervisor of a rank and the rank, and the result of a case.

Only a process that started another one sends it pickles. Everything else is JSON: answers to the process that started
this one, and the words of ranks to each other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter

from longca.manifests import Device
from longca_bench.measuring.status import Status

__all__ = ["COMPUTING", "PUSHING", "Place", "Result", "Setup", "from_json", "to_json"]

#: First word of each phase in which a rank is inside a kernel, and does not wait for other ranks.
COMPUTING = "kernel"
#: The phase in which a rank pushes into the memory of others, and does not wait for them.
PUSHING = "push"


@dataclass(frozen=True)
class Place:
    """The place of a rank in a job.

    Attributes:
        world: Number of the process group. A failure ends one group, and the next one has another number.
        rank: The rank.
        size: Number of ranks.
        local_rank: The rank's number on this machine, and so the number of its GPU.
        host: Host of the job's store.
        port: Port of the job's store.
    """

    world: int
    rank: int
    size: int
    local_rank: int
    host: str
    port: int


@dataclass(frozen=True)
class Setup:
    """What all cases of a run share, and the first message to a rank.

    Attributes:
        device: The device of each rank.
        disabled: Plugins to leave out.
        with_backward: Lengths whose references need gradients, because some case at that length is a backward.
        memory: Bytes of address space that each worker may take, or None for no limit.
        wait_idle: Seconds that a case may wait for a quiet machine.
        place: The place of the rank, or None on one device.
    """

    device: Device
    disabled: frozenset[str]
    with_backward: frozenset[int]
    memory: int | None
    wait_idle: float = 0.0
    place: Place | None = None


@dataclass(frozen=True)
class Result:
    """The result of a case.

    Attributes:
        status: The end of the case.
        message: The reason for a status other than `ok`.
        fields: The measured fields of the record.
        is_last: Whether the process that measured it can measure nothing more.
    """

    status: Status
    message: str
    fields: dict[str, Any]
    is_last: bool = False


def to_json(value: object) -> bytes:
    """A value of plain data, dataclasses and pydantic models as JSON. NaN and infinities keep their value."""
    return json.dumps(value, default=_plain, ensure_ascii=False).encode("utf-8", "replace")


def from_json(data: bytes, kind: Any = Any) -> Any:
    """The value that another process gave to `to_json`.

    Args:
        data: The JSON.
        kind: The type of the value. `Any` leaves lists in place of tuples, and dicts in place of dataclasses.

    Raises:
        ValueError: The data are not JSON, or no such value.
    """
    return _adapter(kind).validate_json(data)


def _plain(value: Any) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump()
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return list(value)  # a set, or another sequence


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
