"""The kernel contract: plan, forward, backward.

Shapes, everywhere: q [Tq, Hq, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv], out [Tq, Hq, Dv], lse [Hq, Tq]. Dv is D, except for
an offer that takes another. Tensors are packed, and a batch is documents. lse is the natural log of the softmax's
denominator, in float32 (float64 for float64 inputs). For a query that sees nothing, out is 0 and lse is −∞. Adapters
correct a library that returns other values there.

The helpers below stand between a caller's tensors and a kernel. A kernel reads tensors through `readable`, writes to
`writable` ones, and returns results through `fill`. `on_device_of` makes their device the current one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

import torch
from torch import _C, Tensor

from longca.errors import RequestError
from longca.manifests import Device, Problem
from longca.masks import Form, Mask
from longca.metadata.block_lists import BlockLists

__all__ = [
    "Kernel",
    "Plan",
    "as_in_an_operator",
    "check_inputs",
    "check_mask",
    "device_of",
    "fill",
    "in_given_dtypes",
    "like_out",
    "new_out",
    "no_gradients",
    "nothing_seen",
    "on_device_of",
    "readable",
    "torch_device",
    "torch_dtype",
    "writable",
]

_AS_IT_IS = nullcontext()


@dataclass(eq=False)
class Plan:
    """A mask made ready for one kernel on one device. Every layer with this mask reuses the plan.

    An adapter adds its kernel's tensors as fields of a subclass.

    Attributes:
        problem: The problem.
        form: The form of the mask: that of the offer that covers the problem.
        backend: The function and the library that run.
    """

    problem: Problem
    form: Form
    backend: str

    @property
    def form_text(self) -> str:
        """The form's name in records."""
        return str(self.form)

    @property
    def metadata_bytes(self) -> int:
        """Bytes of the plan's tensors, also of tensors within its tuples and dataclasses."""
        return sum(tensor.nbytes for tensor in _tensors(vars(self)))

    @property
    def list_bytes(self) -> int:
        """Bytes of the plan's block lists, the only metadata that may grow with the square of lengths."""
        lists = (value for value in vars(self).values() if isinstance(value, BlockLists))
        return sum(tensor.nbytes for value in lists for tensor in value)


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors within a value."""
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
    """An attention kernel. One instance serves a process. It keeps only compiled code between calls."""

    def plan(self, problem: Problem) -> Plan:
        """Puts the problem's mask on its device in the kernel's own form. It is timed apart from the kernel."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, *, out: Tensor | None = None, lse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of q to k and v under the plan's mask.

        Args:
            q: [Tq, Hq, D].
            k: [Tk, Hkv, D].
            v: [Tk, Hkv, Dv].
            plan: The plan of a problem of these shapes.
            out: Buffer for the output, or None for a new tensor.
            lse: Buffer for the log-sum-exp, or None for a new tensor.

        Returns:
            out [Tq, Hq, Dv] in q's dtype, and lse [Hq, Tq].
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
            dout: Gradient of the output: [Tq, Hq, Dv].
            q: [Tq, Hq, D].
            k: [Tk, Hkv, D].
            v: [Tk, Hkv, Dv].
            out: The forward's output. For a composed problem, the output of the larger softmax.
            lse: The log-sum-exp that belongs to `out`.
            plan: The forward's plan, made for the direction `backward`.
            dq: Buffer for the gradient of q, or None for a new tensor.
            dk: Buffer for the gradient of k, or None for a new tensor.
            dv: Buffer for the gradient of v, or None for a new tensor.
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
    """A tensor's device, as a problem names it."""
    if tensor.device.type == "cpu":
        return Device("cpu")
    if tensor.device.type != "cuda":
        raise RequestError(f"tensors are on {tensor.device}; LongCA runs on cpu and cuda")
    properties = torch.cuda.get_device_properties(tensor.device)
    return Device("cuda", (properties.major, properties.minor), properties.total_memory, properties.name)


def in_given_dtypes(x: Tensor) -> AbstractContextManager[Any]:
    """Turns torch.autocast off, so that a kernel computes in its tensors' dtype."""
    return torch.autocast(x.device.type, enabled=False) if _C._is_any_autocast_enabled() else _AS_IT_IS


def check_mask(mask: object) -> None:
    """Raises RequestError if an argument is no mask. The message names the functions that build masks."""
    if not isinstance(mask, Mask):
        raise RequestError(
            f"mask is a {type(mask).__name__}; build one with longca.masks.build or masks.sample, or make one of "
            "what you have with masks.from_dense, from_block_mask, from_cu_seqlens or from_position_ids"
        )


def check_inputs(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Checks the shapes, dtypes and devices of attention's inputs against one another.

    Raises:
        RequestError: They are no tensors or do not fit. The message names the argument and the allowed values.
    """
    alike = (
        isinstance(q, Tensor)
        and isinstance(k, Tensor)
        and isinstance(v, Tensor)
        and q.dim() == k.dim() == v.dim() == 3
        and q.dtype == k.dtype == v.dtype
        and q.device == k.device == v.device
    )
    if not alike:
        _explain_unlike(q, k, v)
    (_, heads_q, head_dim), of_k = q.shape, k.shape
    if of_k[:2] != v.shape[:2] or head_dim != of_k[2]:
        raise RequestError(
            f"q is {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)}; "
            "k and v must have as many tokens and heads, and q and k one head_dim"
        )
    if of_k[1] == 0 or heads_q % of_k[1]:
        raise RequestError(f"{heads_q} query heads do not divide among {of_k[1]} KV heads")


def _explain_unlike(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, Tensor):
            raise RequestError(f"{name} is a {type(tensor).__name__}; give torch tensors")
        if tensor.dim() != 3:
            raise RequestError(f"{name} has shape {tuple(tensor.shape)}; tensors are packed: [tokens, heads, head_dim]")
        if tensor.dtype != q.dtype or tensor.device != q.device:
            raise RequestError(
                f"q is {q.dtype} on {q.device}, but {name} is {tensor.dtype} on {tensor.device}; give all three alike"
            )


def nothing_seen(q: Tensor) -> Tensor:
    """The lse of queries [Tq, Hq, D] that see nothing: −∞, [Hq, Tq]."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return torch.full((q.shape[1], q.shape[0]), -torch.inf, dtype=wide, device=q.device)


def new_out(q: Tensor, v: Tensor) -> Tensor:
    """Memory for the output of q [Tq, Hq, D] and v [Tk, Hkv, Dv]: [Tq, Hq, Dv], contiguous."""
    return q.new_empty((*q.shape[:2], v.shape[2]))


def like_out(q: Tensor, v: Tensor) -> Tensor:
    """A tensor of the output's shape, dtype and device that takes no memory: q, or an expanded view of it."""
    return q if q.shape[2] == v.shape[2] else q[..., :1].expand(-1, -1, v.shape[2])


def no_gradients(
    tensors: tuple[Tensor, Tensor, Tensor], buffers: tuple[Tensor | None, Tensor | None, Tensor | None]
) -> tuple[Tensor, Tensor, Tensor]:
    """Zeros as the gradients of q, k and v, in the caller's buffers if there are any."""
    dq, dk, dv = (fill(buffer, torch.zeros_like(x)) for buffer, x in zip(buffers, tensors, strict=True))
    return dq, dk, dv


def fill(buffer: Tensor | None, result: Tensor) -> Tensor:
    """A result, copied into the caller's buffer unless it is there already or there is none."""
    return result if buffer is None or buffer is result else buffer.copy_(result)


def readable(x: Tensor) -> Tensor:
    """A tensor whose last dimension is contiguous: the tensor itself, or a copy."""
    return x if x.stride(-1) == 1 else x.contiguous()


def writable(buffer: Tensor | None, like: Tensor) -> Tensor:
    """A tensor for a kernel's result: the caller's buffer, or a new tensor if a kernel cannot write to the buffer."""
    if buffer is not None and buffer.stride(-1) == 1:
        return buffer
    return torch.empty(like.shape, dtype=like.dtype, device=like.device)


def on_device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Makes a CUDA tensor's device the current one. Plans and Triton's launches go there."""
    if not x.is_cuda or x.device.index == torch.cuda.current_device():
        return _AS_IT_IS
    return torch.cuda.device(x.device)


def as_in_an_operator(x: Tensor) -> AbstractContextManager[Any]:
    """Runs a kernel as an operator would: below autograd, on its tensor's device and in the tensor's dtype."""
    below = _C._AutoDispatchBelowADInplaceOrView()
    contexts = on_device_of(x), in_given_dtypes(x)
    return below if contexts == (_AS_IT_IS, _AS_IT_IS) else _nested(below, *contexts)


@contextmanager
def _nested(*contexts: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield
