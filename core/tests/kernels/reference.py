"""Attention by a dense matrix, einsum and autograd, in float64. It shares no code with the kernels."""

from typing import NamedTuple

import numpy as np
import torch


class Result(NamedTuple):
    """The results of both directions of a kernel."""

    out: torch.Tensor  # [Tq, Hq, D]
    lse: torch.Tensor  # [Hq, Tq]
    dq: torch.Tensor  # [Tq, Hq, D]
    dk: torch.Tensor  # [Tk, Hkv, D]
    dv: torch.Tensor  # [Tk, Hkv, D]


def visible_by_head(mask, heads_q):
    """bool [Hq, Sq, Sk]: which keys each query of each query head sees."""
    dense = mask.dense()
    matrices = dense if dense.ndim == 3 else dense[None]
    return torch.from_numpy(np.stack([matrices[h * len(matrices) // heads_q] for h in range(heads_q)]))


def softmax_attention(q, k, v, visible, scale, softcap=None):
    """(out, lse), differentiable in q, k and v. A query that sees nothing gives out 0 and lse −inf."""
    group = q.shape[1] // k.shape[1]
    head = torch.arange(q.shape[1], device=q.device) // group
    scores = torch.einsum("ihd,jhd->hij", q, k[:, head]) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    seen = visible.any(-1)  # [Hq, Tq]
    scores = scores.masked_fill(~visible & seen[..., None], -torch.inf)  # rows that see nothing stay finite
    lse = torch.logsumexp(scores, -1)
    weights = (scores - lse[..., None]).exp() * visible
    return torch.einsum("hij,jhd->ihd", weights, v[:, head]), lse.masked_fill(~seen, -torch.inf)


def reference(q, k, v, dout, mask, scale=None, softcap=None):
    """The true result for some inputs, of any dtype, in float64."""
    visible = visible_by_head(mask, q.shape[1]).to(q.device)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    out, lse = softmax_attention(*wide, visible, q.shape[2] ** -0.5 if scale is None else scale, softcap)
    grads = torch.autograd.grad(out, wide, dout.double())
    return Result(out.detach(), lse.detach(), *grads)


class Bounds(NamedTuple):
    """The errors that a dtype's arithmetic is allowed: relative for rows, absolute for lse."""

    out: float
    grad: float
    lse: float


#: About twice what correct kernels were seen to make of unit normal inputs, gradients that cancel to 0 among them; a
#: key too many or too few makes 0.1 to 1.
BOUNDS = {
    torch.float64: Bounds(1e-12, 1e-12, 1e-12),
    torch.float32: Bounds(1e-5, 1e-3, 3e-6),
    torch.bfloat16: Bounds(1e-2, 1e-1, 2e-4),
    torch.float16: Bounds(2e-3, 8e-3, 2e-4),
}


def worst_row(actual, expected):
    """The largest error of a row of [tokens, heads, D], relative to the largest of the row, the mean row and 0.1."""
    assert actual.shape == expected.shape
    if not actual.isfinite().all():
        return float("inf")
    error = (actual.double() - expected).abs().amax(-1)
    size = expected.abs().amax(-1)
    return (error / torch.maximum(size, size.mean()).clamp_min(0.1)).max().item() if error.numel() else 0.0


def assert_close(actual, expected, bounds):
    """Every row of every tensor is within its bound. A query that sees nothing has out 0 and lse −inf exactly."""
    for name in ("out", "dq", "dk", "dv"):
        bound = bounds.out if name == "out" else bounds.grad
        worst = worst_row(getattr(actual, name), getattr(expected, name))
        assert worst <= bound, f"{name}: the worst row is off by {worst:.2e}, more than {bound:.2e}"
    assert actual.lse.shape == expected.lse.shape
    unseen = expected.lse == -torch.inf
    assert torch.equal(actual.lse == -torch.inf, unseen), "lse is -inf in other rows than those that see nothing"
    assert not actual.out[unseen.T].any(), "out is not 0 in rows that see nothing"
    assert not actual.dq[unseen.T].any(), "dq is not 0 in rows that see nothing"
    worst = (actual.lse[~unseen].double() - expected.lse[~unseen]).abs().max().item() if not unseen.all() else 0.0
    assert worst <= bounds.lse, f"lse is off by {worst:.2e}, more than {bounds.lse:.2e}"
