"""The kernel contract: plan, forward, backward.

Shapes, everywhere: q [Tq, Hq, D], k and v [Tk, Hkv, D], out [Tq, Hq, D], lse [Hq, Tq]. Tensors are packed; a batch is
documents. lse is the natural log of the softmax's denominator, in float32 (float64 for float64 inputs). Where a query
sees nothing, out is 0 and lse is −∞; adapters normalise what their library says there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from longca.errors import RequestError
from longca.manifests import Device, Problem
from longca.masks import Form, Mask
from longca.metadata.block_lists import BlockLists

__all__ = [
    "Kernel",
    "Plan",
    "check_inputs",
    "check_mask",
    "device_of",
    "fill",
    "in_given_dtypes",
    "no_gradients",
    "nothing_seen",
    "readable",
    "torch_device",
    "torch_dtype",
]


@dataclass(eq=False)
class Plan:
    """A mask made ready for one kernel on one device; it is reused by every layer that has the mask.

    Adapters add what their kernel needs as fields of a subclass.

    Attributes:
        problem: What was planned for.
        form: The form the mask was put in: the one of the offer that covers the problem.
        backend: Which function of which library runs.
    """

    problem: Problem
    form: Form
    backend: str

    @property
    def form_text(self) -> str:
        """The form as records have it."""
        return str(self.form)

    @property
    def metadata_bytes(self) -> int:
        """Bytes of the plan's tensors, also of those within its tuples and dataclasses."""
        return sum(tensor.nbytes for tensor in _tensors(vars(self)))

    @property
    def list_bytes(self) -> int:
        """Bytes of the plan's block lists, the only part of its metadata that may grow with the square of lengths."""
        lists = (value for value in vars(self).values() if isinstance(value, BlockLists))
        return sum(tensor.nbytes for value in lists for tensor in value)


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors that a value is or holds."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))
    elif is_dataclass(value) and not isinstance(value, type | Problem):
        yield from _tensors(tuple(getattr(value, field.name) for field in fields(value)))


class Kernel(Protocol):
    """An attention kernel. One instance serves a process; it keeps nothing between calls but compiled code."""

    def plan(self, problem: Problem) -> Plan:
        """Puts the problem's mask on its device in the kernel's own form. Timed apart from the kernel."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, *, out: Tensor | None = None, lse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of q to k and v under the plan's mask.

        Args:
            q: [Tq, Hq, D].
            k: [Tk, Hkv, D].
            v: [Tk, Hkv, D].
            plan: What `plan` returned for a problem of these shapes.
            out: Filled with the output and returned, where given.
            lse: Likewise for the log-sum-exp.

        Returns:
            out [Tq, Hq, D] in q's dtype, and lse [Hq, Tq].
        """

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: Plan,
        *,
        dq: Tensor | None = None,
        dk: Tensor | None = None,
        dv: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v.

        Args:
            dout: Gradient of the output: [Tq, Hq, D].
            q: [Tq, Hq, D].
            k: [Tk, Hkv, D].
            v: [Tk, Hkv, D].
            out: The forward's output, or, where the problem is composed, that of a larger softmax of which this
                call's keys were a part.
            lse: The log-sum-exp that belongs to `out`.
            plan: The forward's plan, made for the direction `backward`.
            dq: Filled with the gradient and returned, where given.
            dk: Likewise.
            dv: Likewise.
        """


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a manifest's dtype name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def torch_device(device: Device) -> torch.device:
    """The torch device of a problem's device."""
    return torch.device(device.kind)


def device_of(tensor: Tensor) -> Device:
    """What a tensor lies on, as a problem's device."""
    if tensor.device.type == "cpu":
        return Device("cpu")
    if tensor.device.type != "cuda":
        raise RequestError(f"tensors are on {tensor.device}; LongCA runs on cpu and cuda")
    properties = torch.cuda.get_device_properties(tensor.device)
    return Device("cuda", (properties.major, properties.minor), properties.total_memory, properties.name)


def in_given_dtypes(x: Tensor) -> AbstractContextManager[Any]:
    """Keeps torch.autocast from what kernels compute: it is in their tensors' dtype, and so are their results."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def check_mask(mask: object) -> None:
    """Checks that a mask is one.

    Raises:
        RequestError: It is not; the message says where masks come from.
    """
    if not isinstance(mask, Mask):
        raise RequestError(f"mask is a {type(mask).__name__}; build one with longca.masks.build or masks.sample")


def check_inputs(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Checks the shapes, dtypes and devices of attention's inputs against one another.

    Raises:
        RequestError: They are no tensors or do not fit; the message says which and what is allowed.
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, Tensor):
            raise RequestError(f"{name} is a {type(tensor).__name__}; give torch tensors")
        if tensor.dim() != 3:
            raise RequestError(f"{name} has shape {tuple(tensor.shape)}; tensors are packed: [tokens, heads, head_dim]")
        if tensor.dtype != q.dtype or tensor.device != q.device:
            raise RequestError(
                f"q is {q.dtype} on {q.device}, but {name} is {tensor.dtype} on {tensor.device}; give all three alike"
            )
    if k.shape != v.shape or q.shape[2] != k.shape[2]:
        raise RequestError(
            f"q is {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)}; "
            "k and v must be of one shape, and all three of one head_dim"
        )
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise RequestError(f"{q.shape[1]} query heads do not divide among {k.shape[1]} KV heads")


def nothing_seen(q: Tensor) -> Tensor:
    """The lse of queries [Tq, Hq, D] that see nothing: −∞, [Hq, Tq]."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return torch.full((q.shape[1], q.shape[0]), -torch.inf, dtype=wide, device=q.device)


def no_gradients(
    tensors: tuple[Tensor, Tensor, Tensor], buffers: tuple[Tensor | None, Tensor | None, Tensor | None]
) -> tuple[Tensor, Tensor, Tensor]:
    """Zeros as the gradients of q, k and v, in the caller's buffers where there are any."""
    dq, dk, dv = (fill(buffer, torch.zeros_like(x)) for buffer, x in zip(buffers, tensors, strict=True))
    return dq, dk, dv


def fill(buffer: Tensor | None, result: Tensor) -> Tensor:
    """A result, copied into the caller's buffer where there is one that it is not in already."""
    return result if buffer is None or buffer is result else buffer.copy_(result)


def readable(x: Tensor) -> Tensor:
    """A tensor whose last dimension is contiguous, as kernels take for granted: itself, or a copy."""
    return x if x.stride(-1) == 1 else x.contiguous()
