"""Messages between the supervisor of a rank and the rank, and the result of a case.

Only a process that started another one sends it pickles. Everything else is JSON: answers to the process that started
this one, and the words of ranks to each other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter

from longca.manifests import Device
from longca_bench.measuring.options import Options
from longca_bench.measuring.status import Status

__all__ = ["COMPUTING", "PUSHING", "Place", "Result", "Setup", "from_json", "to_json"]

#: First word of each phase in which a rank is inside a kernel, and does not wait for other ranks.
COMPUTING = "kernel"
#: The phase in which a rank pushes into the memory of others, and does not wait for them.
PUSHING = "push"


@dataclass(frozen=True)
class Place:
    """The place of a rank in a job, with the job's store and the number of the process group, which a failure ends."""

    world: int
    rank: int
    size: int
    local_rank: int
    host: str
    port: int


@dataclass(frozen=True)
class Setup:
    """The facts of all cases of a run, and a rank's first message. `with_backward` has lengths that need gradients."""

    device: Device
    with_backward: frozenset[int] = frozenset()
    options: Options = field(default_factory=Options)
    place: Place | None = None


@dataclass(frozen=True)
class Result:
    """The result of a case. After a last one the process that measured it can measure nothing more."""

    status: Status
    message: str
    fields: dict[str, Any]
    is_last: bool = False


def to_json(value: object) -> bytes:
    """A value of plain data, dataclasses and pydantic models as JSON. NaN and infinities keep their value."""
    return json.dumps(value, default=_plain, ensure_ascii=False).encode("utf-8", "replace")


def from_json(data: bytes, kind: Any = Any) -> Any:
    """The value of a type that was given to `to_json`, or a ValueError. `Any` leaves lists and dicts."""
    return _adapter(kind).validate_json(data)


def _plain(value: Any) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump()
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    return list(value)  # a set, or another sequence


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
