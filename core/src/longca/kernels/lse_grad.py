"""Composing kernels that are differentiable in (out, lse) only. Plugins with `Backward.LSE_GRAD` use it.

Attention over parts of the keys merges by out = Σᵢ wᵢ·outᵢ with wᵢ = exp(lseᵢ − lse). For a gradient dout of the merged
output, a part's own (outᵢ, lseᵢ) receive

    doutᵢ = wᵢ·dout        dlseᵢ = wᵢ·(dout·outᵢ − dout·out)

where · over tensors sums over the head dimension. The part is computed again and differentiated with these gradients. A
kernel that runs alone is the part with w = 1 and dlse = 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["backward_through_lse"]

#: From (q, k, v) to (out [Tq, Hq, D], lse [Hq, Tq]), both differentiable.
DifferentiableForward = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def backward_through_lse(
    forward: DifferentiableForward, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v through a part of a larger softmax.

    Args:
        forward: Computes the part. Rows that see nothing give out 0 and lse −∞.
        dout: Gradient of the merged output: [Tq, Hq, D].
        q: [Tq, Hq, D].
        k: [Tk, Hkv, D]: the part's keys.
        v: [Tk, Hkv, D].
        out: The merged output: [Tq, Hq, D].
        lse: The merged log-sum-exp: [Hq, Tq].

    Returns:
        dq [Tq, Hq, D], dk and dv [Tk, Hkv, D].
    """
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    with _recording():
        part_out, part_lse = forward(*inputs)
    wide = part_lse.dtype
    seen = part_lse.detach() > -torch.inf
    weight = torch.where(seen, (part_lse.detach() - lse).exp(), 0.0)  # [Hq, Tq]
    wide_dout = dout.to(wide)
    difference = (wide_dout * (part_out.detach().to(wide) - out.to(wide))).sum(-1).T  # [Hq, Tq]
    dpart_out = (weight.T[..., None] * wide_dout).to(part_out.dtype)
    dpart_lse = torch.where(seen, weight * difference, 0.0)
    with _recording():
        dq, dk, dv = torch.autograd.grad((part_out, part_lse), inputs, (dpart_out, dpart_lse))
    return dq, dk, dv


@contextmanager
def _recording() -> Iterator[None]:
    """Turns autograd on, also inside a custom operator, where PyTorch removes it from the dispatch."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor"):
        excluded = excluded.remove(getattr(torch._C.DispatchKey, key))
    included = torch._C._dispatch_tls_local_include_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded), torch.enable_grad():
        yield
