"""Sinks: a learned logit for each query head that takes a share of the softmax and has no value.

A sink is one more part of the softmax. Its log-sum-exp is the logit s itself, and its output is 0. So a kernel's
results become those of the whole softmax by

    lse' = logaddexp(lse, s)        out' = out · exp(lse − lse')

A backward that takes an external log-sum-exp gets (out', lse'). The sink's own gradient sums over the queries:

    ds = −Σ exp(s − lse') · (dout · out')

On CUDA devices Triton kernels compute this (`longca.kernels.sinks_triton`). Elsewhere, and in float64, plain PyTorch
does. A kernel that computes sinks itself has two more methods, with the arguments and the results of
`forward_with_sinks` and `backward_with_sinks`. They return None if the kernel cannot do so for the plan.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from longca.errors import RequestError

__all__ = ["add_sinks", "backward_with_sinks", "check_numbers", "check_sinks", "forward_with_sinks", "sinks_gradient"]

#: Queries whose products are in memory at once.
_ROWS = 4096
#: Sinks on GPUs whose numbers were checked.
_CHECKED = WeakTensorKeyDictionary()


def check_sinks(sinks: Tensor | None, q: Tensor) -> None:
    """Checks the shape, dtype and device of sinks against those of q [Tq, Hq, D]. The numbers are left unread.

    Raises:
        RequestError: They do not fit. The message has the allowed values.
    """
    if sinks is None:
        return
    if not isinstance(sinks, Tensor):
        raise RequestError(f"sinks is a {type(sinks).__name__}; give a tensor of one number for each query head")
    if sinks.shape != (q.shape[1],):
        raise RequestError(
            f"sinks has the shape {list(sinks.shape)}; give one number for each query head: [{q.shape[1]}]"
        )
    if not sinks.is_floating_point():
        raise RequestError(f"sinks are {sinks.dtype}; give a floating-point type, such as torch.float32")
    if sinks.device != q.device:
        raise RequestError(f"sinks are on {sinks.device} and q on {q.device}; put both on one device")


def check_numbers(sinks: Tensor) -> None:
    """Raises RequestError if a sink is NaN or +∞. On a GPU it reads each tensor once: reading waits for the GPU."""
    if sinks.is_cuda and (sinks in _CHECKED or torch.cuda.is_current_stream_capturing()):
        return
    if not (sinks.detach() < torch.inf).all():
        heads = (~(sinks.detach() < torch.inf)).nonzero().flatten().tolist()
        raise RequestError(f"sinks of heads {heads} are NaN or +∞; give numbers, or −∞ for a head without a sink")
    if sinks.is_cuda:
        _CHECKED[sinks] = True


def forward_with_sinks(kernel: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, plan: Any) -> tuple[Tensor, Tensor]:
    """A kernel's out [Tq, Hq, D] and lse [Hq, Tq] with sinks [Hq]. See `longca.kernels.base.Kernel.forward`."""
    own = getattr(kernel, "forward_with_sinks", None)
    results: tuple[Tensor, Tensor] | None = None if own is None else own(q, k, v, sinks, plan)
    if results is None:
        out, lse = kernel.forward(q, k, v, plan)
        results = add_sinks(out.contiguous(), lse.contiguous(), sinks)
    return results


def backward_with_sinks(
    kernel: Any, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, sinks: Tensor, plan: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A kernel's gradients of q, k, v and sinks [Hq]. See `longca.kernels.base.Kernel.backward`."""
    own = getattr(kernel, "backward_with_sinks", None)
    grads: tuple[Tensor, Tensor, Tensor, Tensor] | None
    grads = None if own is None else own(dout, q, k, v, out, lse, sinks, plan)
    if grads is None:
        dsinks = sinks_gradient(dout, out, lse, sinks)
        grads = *kernel.backward(dout, q, k, v, out, lse, plan), dsinks
    return grads


def add_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """out [Tq, Hq, D], written in place, and a new lse [Hq, Tq] of the softmax with its sinks [Hq].

    out and lse are contiguous.
    """
    if _is_fused(lse):
        from longca.kernels.sinks_triton import add_sinks_on_cuda

        return add_sinks_on_cuda(out, lse, sinks)
    whole = torch.logaddexp(lse, sinks.to(lse.dtype)[:, None])
    share = torch.where(lse == -torch.inf, 0.0, (lse - whole).exp())  # [Hq, Tq]
    return out.mul_(share.T[..., None]), whole


def sinks_gradient(dout: Tensor, out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """The gradient of sinks [Hq], in their dtype, by the results of `add_sinks` for these queries.

    dout, out and lse are contiguous.
    """
    if _is_fused(lse):
        from longca.kernels.sinks_triton import sinks_gradient_on_cuda

        return sinks_gradient_on_cuda(dout, out, lse, sinks)
    logits = sinks.to(lse.dtype)[:, None]
    weights = torch.where(lse == -torch.inf, 0.0, (logits - lse).exp())  # [Hq, Tq]
    parts = zip(dout.split(_ROWS), out.split(_ROWS), strict=True)
    dots = torch.cat([(dpart.to(lse.dtype) * part).sum(-1) for dpart, part in parts]).T
    return -(weights * dots).sum(-1).to(sinks.dtype)


def _is_fused(lse: Tensor) -> bool:
    return lse.is_cuda and lse.dtype == torch.float32
