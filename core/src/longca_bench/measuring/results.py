"""Results: what a kernel returned, described in plain data, and what the contract says about it.

A worker describes the objects that a kernel returned, and the runner decides. A kernel that runs in the runner's own
process, as a test's instance does, takes the same way.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from longca.errors import LongCAError
from longca.manifests import Direction
from longca.plain_text import plain_text
from longca_bench.measuring.commands import Returned

__all__ = ["NAMES", "ContractError", "describe_all", "fault_of", "held", "methods_of", "named_results"]

#: Names of the results of each direction.
NAMES = {Direction.FORWARD: ("out", "lse"), Direction.BACKWARD: ("dq", "dk", "dv")}
_WORD = 400
_METHODS = ("plan", "forward", "backward")
_MOST_ARGUMENTS = 64


class ContractError(LongCAError):
    """Results that break the contract: the error in a clause, by the result's name."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {fault}" for name, fault in faults.items()))
        self.faults = dict(faults)


def named_results(direction: Direction, results: Any, what: str = "kernel") -> tuple[dict[str, Any], str]:
    """The results by their names, and what is wrong with them together, in a clause."""
    names = NAMES[direction]
    if type(results) is not tuple:
        kind = plain_text(type(results).__name__, 100)
        return {}, f"the {what} returned a {kind} instead of a tuple of {', '.join(names)}"
    if len(results) != len(names):
        return {}, f"the {what} returned {len(results)} tensors instead of {len(names)}: {', '.join(names)}"
    return dict(zip(names, results, strict=True)), ""


def held(
    direction: Direction,
    results: Any,
    tensors: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    like: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """The results of a call in this process, by their names. `like` has the contract's shapes, dtypes and device."""
    named, fault = named_results(direction, results)
    faults = {NAMES[direction][0]: fault} if fault else {}
    for name, returned in describe_all(named, tensors, buffers).items():
        if fault := fault_of(name, returned, like[name], name in buffers):
            faults[name] = fault
    if faults:
        raise ContractError(faults)
    return named


def describe_all(
    named: Mapping[str, Any], tensors: Mapping[str, Tensor], buffers: Mapping[str, Tensor], *, parts: bool = False
) -> dict[str, Returned]:
    """Describes results. Those of a strategy may be parts of one buffer, one after another."""
    described: dict[str, Returned] = {}
    earlier: dict[str, Tensor] = {}
    for name, result in named.items():
        owners = {**tensors, **{other: x for other, x in earlier.items() if not parts or _meet(x, result)}}
        described[name] = _describe(result, owners, buffers)
        if not described[name].fault:
            earlier[name] = result
    return described


def methods_of(kernel: Any) -> dict[str, list[str]]:
    """The names of the arguments of each method of a kernel. `**` stands for any others."""
    found: dict[str, list[str]] = {}
    for name in _METHODS:
        if callable(method := getattr(kernel, name, None)):
            found[name] = []
            with suppress(TypeError, ValueError):  # nobody knows the arguments of some builtin functions
                taken = list(inspect.signature(method).parameters.values())[:_MOST_ARGUMENTS]
                found[name] = ["**" if p.kind is p.VAR_KEYWORD else plain_text(p.name, _WORD) for p in taken]
    return found


def _describe(result: Any, tensors: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> Returned:
    kind = plain_text(type(result).__name__, _WORD)
    if type(result) not in (Tensor, torch.nn.Parameter):
        return Returned(kind=kind, fault=f"a {kind} was returned instead of a tensor")
    about: dict[str, Any] = {"kind": kind, "shape": list(result.shape), "device": result.device.type}
    about["dtype"] = str(result.dtype).removeprefix("torch.")
    if result.layout is not torch.strided or result.device.type == "meta":
        word = "meta" if result.device.type == "meta" else str(result.layout).removeprefix("torch.")
        return Returned(**about, fault=f"a {word} tensor was returned instead of a dense one")
    about["stride"] = list(result.stride())
    if result.is_conj() or result.is_neg():
        return Returned(**about, fault="a lazily negated or conjugated tensor was returned")
    if _overlaps(result):
        return Returned(**about, fault=f"a tensor with strides {tuple(result.stride())} was returned: elements overlap")
    return Returned(**about, is_in=_same(result, buffers), shares=_owner(result, tensors))


def fault_of(name: str, returned: Returned, like: Tensor, asked: bool) -> str:
    """The breach of the contract by a result, in a clause, or an empty text. `asked` means that a buffer was given."""
    if returned.fault:
        return returned.fault
    got = f"{tuple(returned.shape)} {returned.dtype} on {returned.device}"
    wanted = f"{tuple(like.shape)} {str(like.dtype).removeprefix('torch.')} on {like.device.type}"
    if got != wanted:
        return f"{got} was returned; {wanted} is the contract"
    if asked and returned.is_in != name:
        return "the buffer passed in was not filled"
    if returned.shares:
        return f"it shares its memory with {returned.shares}"
    return ""


def _same(result: Tensor, buffers: Mapping[str, Tensor]) -> str:
    """The buffer whose elements a result has, or an empty text."""
    for name, buffer in buffers.items():
        if result.data_ptr() == buffer.data_ptr() and (result is buffer or result.stride() == buffer.stride()):
            return name
    return ""


def _owner(result: Tensor, tensors: Mapping[str, Tensor]) -> str:
    """The argument or the earlier result that shares memory with a result, or an empty text."""
    memory = result.untyped_storage().data_ptr()
    return next((name for name, x in tensors.items() if memory and x.untyped_storage().data_ptr() == memory), "")


def _meet(earlier: Tensor, result: Any) -> bool:
    """Whether the bytes from a result's first element to its last one meet those of an earlier result."""
    if type(result) is not Tensor or result.layout is not torch.strided:
        return True
    (first, last), (start, stop) = _bounds(earlier), _bounds(result)
    return start < last and first < stop


def _bounds(x: Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first byte and after its last byte."""
    last = sum(stride * (size - 1) for stride, size in zip(x.stride(), x.shape, strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size() if x.numel() else x.data_ptr()


def _overlaps(result: Tensor) -> bool:
    """Whether two elements of a tensor share memory."""
    taken = 0  # the last element of the dims so far
    for stride, size in sorted(zip(result.stride(), result.shape, strict=True)):
        if size > 1:
            if stride <= taken:
                return True
            taken += stride * (size - 1)
    return False
