"""Attention over a dense matrix, for the fakes of cuDNN's open kernels. Tensors have the library's layout."""

from __future__ import annotations

import torch


def forward(q, k, v, seen, scale):
    """Attention in float64.

    Args:
        q: [1, Tq, Hq, D].
        k: [1, Tk, Hkv, D].
        v: [1, Tk, Hkv, D].
        seen: bool [Hq, Tq, Tk].
        scale: Factor on the scores.

    Returns:
        out [1, Tq, Hq, D], which is NaN for a query that sees nothing, and lse [1, Hq, Tq].
    """
    q, k, v = _heads_first(q, k, v)
    scores = (q @ k.mT * scale).masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1)[None], scores.logsumexp(-1)[None]


def backward(dout, q, k, v, out, lse, seen, scale):
    """Gradients of q, k and v in the library's layout, from any out and lse. They are in float64."""
    heads_kv = k.shape[2]
    q, k, v = _heads_first(q, k, v)
    dout, out = (x[0].transpose(0, 1).double() for x in (dout, out))
    weights = (q @ k.mT * scale - lse[0, ..., None].double()).exp().masked_fill(~seen, 0)
    dscores = weights * (dout @ v.mT - (dout * out).sum(-1, keepdim=True)) * scale
    grads = dscores @ k, *(x.unflatten(0, (heads_kv, -1)).sum(1) for x in (dscores.mT @ q, weights.mT @ dout))
    return [x.transpose(0, 1)[None] for x in grads]


def _heads_first(q, k, v):
    q, k, v = (x[0].transpose(0, 1).double() for x in (q, k, v))
    return q, *(x.repeat_interleave(len(q) // len(x), 0) for x in (k, v))
