"""What the runner and its workers say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from longca.manifests import Device

__all__ = ["Outcome", "Phase", "Setup"]


@dataclass(frozen=True)
class Setup:
    """What a worker is told once.

    Attributes:
        device: What it measures on.
        disabled: Plugins to leave out.
        with_backward: Lengths whose references need gradients: those of which some case is a backward.
        memory: Bytes that it may take; None for no limit.
    """

    device: Device
    disabled: frozenset[str]
    with_backward: frozenset[int]
    memory: int | None


@dataclass(frozen=True)
class Phase:
    """What a worker is doing: `inputs`, `plan`, `verify`, `time` or `verify again`; `ready` once it is started."""

    name: str


@dataclass(frozen=True)
class Outcome:
    """What came of a case.

    Attributes:
        status: `ok`, `wrong`, `oom` or `error`.
        message: What went wrong.
        fields: The record's fields that were measured.
        is_last: Whether the worker can measure nothing more, and ends.
    """

    status: str
    message: str
    fields: dict[str, Any]
    is_last: bool = False
