"""direct: attention without the dispatcher, for tensors that nothing watches. It takes a fraction of its host time.

The operator of `longca.kernels.operators` takes all other calls. Both save the same tensors for the backward, so that a
checkpoint may compute a forward again in the other way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import _C, Tensor
from torch.compiler import is_compiling

from longca.kernels.planned import Planned, Settings, planned
from longca.masks import Mask

__all__ = ["attend", "is_direct"]


def is_direct(*tensors: Tensor) -> bool:
    """Whether a function of these tensors, which are on one device, may run without the dispatcher.

    It may not under a compiler, a tracer, functorch, or a mode that watches operators. Neither may it if a tensor is a
    subclass, a fake or a negated view, or lies on another device than a CPU or a CUDA device.
    """
    if (
        is_compiling()
        or _C._len_torch_dispatch_stack()
        or _C._len_torch_function_stack()
        or _C._are_functorch_transforms_active()
        or _C._is_tracing()
        or not (tensors[0].is_cuda or tensors[0].is_cpu)
    ):
        return False
    for x in tensors:  # a generator would take twice as long
        plain = type(x) in _PLAIN and not x.is_neg()
        if not plain:
            return False
    return True


_PLAIN = (Tensor, torch.nn.Parameter)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, settings: Settings, training: bool) -> tuple[Tensor, Tensor]:
    """out [Tq, Hq, D] and lse [Hq, Tq], which carries no gradient. See `longca.attention`."""
    ready = planned(mask, q, k, v, settings, training)
    if not training:
        return ready.forward(q, k, v)
    out, lse = LongCAAttention.apply(q, k, v, ready, settings)  # type: ignore[no-untyped-call]
    return out, lse


class LongCAAttention(torch.autograd.Function):
    """A kernel's forward and backward as one differentiable function."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, ready: Planned, settings: Settings) -> tuple[Tensor, Tensor]:
        out, lse = ready.forward(q, k, v)
        ctx.ready, ctx.settings = ready, settings
        ctx.save_for_backward(q, k, v, out, lse, ready.key)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, _dlse: None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        if dout is None:  # what follows has no gradient
            dout = torch.zeros_like(saved[3])
        # The operator says what is wrong with a gradient of a gradient.
        if torch.is_grad_enabled() or not is_direct(dout):
            grads = torch.ops.longca.attention_backward(dout, *saved, *ctx.settings)
        else:
            grads = ctx.ready.backward(dout, *saved[:-1])
        return (*grads, None, None)
