"""operators: attention and its backward as custom operators, whose arguments are tensors and plain numbers.

A compiler traces around an operator. Fake tensors, vmap, tensor subclasses and modes that watch operators work with
them too. The mask travels as its key, in a tensor of one number.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from longca.errors import UnsupportedError
from longca.kernels.base import new_out
from longca.kernels.planned import Settings, planned
from longca.kernels.sinks import check_numbers

__all__ = ["ATTENTION_OPERATORS", "TransformedAttention", "attention", "attention_backward"]


#: A CUDA graph of a compiler would replay one mask for ever, because the key is read on the host.
_TAGS = (torch.Tag.cudagraph_unsafe,)


@torch.library.custom_op("longca::attention", mutates_args=(), tags=_TAGS)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key: Tensor,
    kernel: str,
    softmax_scale: float | None,
    softcap: float | None,
    deterministic: bool,
    allow_unverified: bool,
    training: bool,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """out [Tq, Hq, Dv] and lse [Hq, Tq]. See `longca.attention`."""
    if sinks is not None and sinks.is_cpu:
        check_numbers(sinks)
    settings = Settings(kernel, softmax_scale, softcap, deterministic, allow_unverified, sinks is not None)
    return planned(int(key), q, k, v, settings, training).forward(q, k, v, sinks)


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_settings: Any) -> tuple[Tensor, Tensor]:
    lse_dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return new_out(q, v), q.new_empty((q.shape[1], q.shape[0]), dtype=lse_dtype)


@torch.library.custom_op("longca::attention_backward", mutates_args=(), tags=_TAGS)
def attention_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    key: Tensor,
    kernel: str,
    softmax_scale: float | None,
    softcap: float | None,
    deterministic: bool,
    allow_unverified: bool,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v and sinks. That of no sinks is empty."""
    settings = Settings(kernel, softmax_scale, softcap, deterministic, allow_unverified, sinks is not None)
    *grads, dsinks = planned(int(key), q, k, v, settings, training=True).backward(dout, q, k, v, out, lse, sinks)
    dq, dk, dv = grads
    return dq, dk, dv, dout.new_empty(0) if dsinks is None else dsinks


@attention_backward.register_fake
def _(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    sinks = others[-1]
    dsinks = sinks.new_empty(sinks.shape) if isinstance(sinks, Tensor) else dout.new_empty(0)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dsinks


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, key, *ctx.settings, _training, sinks = inputs
    ctx.save_for_backward(q, k, v, *output, key, sinks)


def _differentiate(
    ctx: Any, dout: Tensor, _dlse: Tensor, backward: Any = torch.ops.longca.attention_backward
) -> tuple[Tensor | None, ...]:
    *saved, sinks = ctx.saved_tensors
    *grads, dsinks = backward(dout, *saved, *ctx.settings, sinks)
    return (*grads, *[None] * 7, None if sinks is None else dsinks)


attention.register_autograd(_differentiate, setup_context=_save)


class TransformedBackward(torch.autograd.Function):
    """The operator of the backward under transforms of `torch.func`."""

    generate_vmap_rule = True
    forward = staticmethod(torch.ops.longca.attention_backward)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Saves nothing."""

    @staticmethod
    def backward(ctx: Any, *_grads: Tensor) -> NoReturn:
        """Refuses a gradient of a gradient."""
        raise UnsupportedError("kernels have no second derivative; take gradients of attention once")


class TransformedAttention(torch.autograd.Function):
    """The operator under transforms of `torch.func`, which do not take the gradients that an operator registers."""

    generate_vmap_rule = True
    forward = staticmethod(torch.ops.longca.attention)
    setup_context = staticmethod(_save)

    @staticmethod
    def backward(ctx: Any, dout: Tensor, _dlse: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of q, k, v and sinks."""
        return _differentiate(ctx, dout, _dlse, TransformedBackward.apply)


# `longca.parallel.attention` calls it under selective activation checkpointing alone. Results may share memory.
torch.library.define(
    "longca::parallel_attention",
    "(Tensor q, Tensor k, Tensor v, Tensor? sinks, int ready, bool training) -> (Tensor, Tensor, Tensor[])",
)

#: What selective activation checkpointing saves, so that attention is neither computed nor exchanged again.
ATTENTION_OPERATORS = [torch.ops.longca.attention.default, torch.ops.longca.parallel_attention.default]
