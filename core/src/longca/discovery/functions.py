"""The torch-free functions that manifests name: what each returns, and its return value as JSON and back."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from longca.errors import PluginError, UnsupportedError
from longca.manifests import Layout
from longca.manifests.memory import StrategyMemory
from longca.manifests.schedule import Phase
from longca.manifests.steps import Ranges, Steps
from longca.plain_text import type_name

__all__ = ["BrokenFunctionError", "as_plain", "check_returned", "from_plain"]


class BrokenFunctionError(PluginError, UnsupportedError):
    """A function that a manifest names hangs, raises or returns something else. The request is refused."""


def check_returned(field: str, value: Any, name: str) -> Any:
    """The value that a manifest's function returned.

    Args:
        field: The manifest's field: layout, memory, schedule, workspace or plan_bytes.
        value: The returned value.
        name: The function and its plugin, for the message.

    Raises:
        BrokenFunctionError: It is of another type than such a function returns.
    """
    kinds = {"layout": Layout, "memory": StrategyMemory, "schedule": tuple}
    fits = isinstance(value, kinds.get(field, (int, np.integer, float)))
    if not fits or (field == "schedule" and not all(isinstance(phase, Phase) for phase in value)):
        raise BrokenFunctionError(f"{name} returned a {type_name(value)}")
    return value if field in kinds else int(value)


def as_plain(field: str, value: Any) -> Any:
    """A checked return value as data for JSON."""
    if field == "layout":
        return _layout_as_plain(value)
    if field == "schedule":
        value = [asdict(phase) for phase in value]
    elif field == "memory":
        value = asdict(value)
    return json.loads(json.dumps(value, default=_number))


def from_plain(field: str, plain: Any) -> Any:
    """The return value that `as_plain` made plain.

    Raises:
        ValueError: The data are of another form. pydantic's errors and LongCA's refusals of a layout are among these.
    """
    if field == "layout":
        return _layout_from_plain(plain)
    kinds: dict[str, Any] = {"memory": StrategyMemory, "schedule": tuple[Phase, ...]}
    return TypeAdapter(kinds.get(field, int)).validate_python(plain)


def _number(value: Any) -> Any:
    return value.item()  # of NumPy


def _layout_as_plain(layout: Layout) -> dict[str, Any]:
    steps = layout.table
    return {
        "shards": _packed_ranges(layout.shards),
        "parts": _packed_ranges(steps.parts),
        "heads": _packed(steps.heads),
        "table": _packed(steps.table),
        "bounds": _packed(steps.bounds),
    }


def _layout_from_plain(plain: Any) -> Layout:
    if not isinstance(plain, Mapping):
        raise ValueError("a layout is a mapping")
    try:
        shards, parts = _unpacked_ranges(plain["shards"]), _unpacked_ranges(plain["parts"])
        heads = tuple(((a, b), (c, d)) for a, b, c, d in _unpacked(plain["heads"]).reshape(-1, 4).tolist())
        table, bounds = _unpacked(plain["table"]).reshape(-1, 3), _unpacked(plain["bounds"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"a layout lacks a part: {error}") from None
    known = (len(parts), len(parts), len(heads))
    if (table < 0).any() or (table >= known).any():
        raise ValueError("a step has a part or heads that are not there")
    if len(bounds) != len(shards) + 1 or bounds[0] != 0 or bounds[-1] != len(table) or (np.diff(bounds) < 0).any():
        raise ValueError("the steps do not divide among the ranks")
    return Layout(Steps(parts, heads, table, bounds), shards)


def _packed(numbers: Any) -> str:
    return b64encode(np.ascontiguousarray(numbers, np.int64).tobytes()).decode("ascii")


def _unpacked(text: Any) -> NDArray[np.int64]:
    return np.frombuffer(b64decode(text, validate=True), np.int64)


def _packed_ranges(several: tuple[Ranges, ...]) -> list[str]:
    flat = [number for ranges in several for pair in ranges for number in pair]
    return [_packed(flat), _packed([len(ranges) for ranges in several])]


def _unpacked_ranges(packed: Any) -> tuple[Ranges, ...]:
    flat, sizes = map(_unpacked, packed)
    pairs = [(start, stop) for start, stop in flat.reshape(-1, 2).tolist()]
    if (sizes < 0).any() or int(sizes.sum()) != len(pairs):
        raise ValueError("the ranges of tokens do not divide as said")
    ends = list(accumulate(sizes.tolist()))
    return tuple(tuple(pairs[end - size : end]) for end, size in zip(ends, sizes.tolist(), strict=True))
