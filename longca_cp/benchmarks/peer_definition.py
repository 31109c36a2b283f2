"""Attention by its definition, dense and in float32, in the shapes of the package flash_attn: to try peers on CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

__all__ = ["Bounds", "backward", "forward"]

#: cu_seqlens_q, cu_seqlens_k, max_seqlen_q and max_seqlen_k of documents; all None for a batch.
Bounds = tuple[Tensor | None, Tensor | None, int | None, int | None]


def forward(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, bounds: Bounds) -> tuple[Tensor, Tensor]:
    """out [B, Tq, Hq, D] and lse [B, Hq, Tq], without B for documents.

    Args:
        q: [B, Tq, Hq, D], or [Tq, Hq, D].
        k: [B, Tk, Hkv, D], or [Tk, Hkv, D].
        v: As k.
        scale: Factor on the scores.
        causal: Whether a query sees no key behind the diagonal, which ends at the bottom right.
        bounds: The documents.
    """
    heads = -2 if bounds[0] is None else 0  # of lse: [B, H, T], or [H, T]
    out = torch.empty_like(q)
    lse = q.new_empty((*q.shape[:-3], q.shape[-2], q.shape[-3]), dtype=torch.float32)
    for rows, keys in _documents(q, k, bounds):
        scores = _scores(q[rows], k[keys], scale, causal)
        sums = scores.logsumexp(-1)
        out[rows] = torch.einsum("hqk,khd->qhd", (scores - sums[..., None]).exp(), _wide(v[keys], q[rows]))
        lse.movedim(heads, -1)[rows] = sums.T
    return out, lse


def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    scale: float,
    causal: bool,
    bounds: Bounds,
) -> None:
    """Fills dq, dk and dv: ds = p · (dp − Σ dout · out). out and lse may belong to a larger softmax.

    Args:
        dout: As q.
        q: As in `forward`, and so are k and v.
        k: Keys.
        v: Values.
        out: As q.
        lse: As returned by `forward`.
        dq: As q.
        dk: As k.
        dv: As k.
        scale: Factor on the scores.
        causal: As in `forward`.
        bounds: The documents.
    """
    heads = -2 if bounds[0] is None else 0
    for rows, keys in _documents(q, k, bounds):
        p = (_scores(q[rows], k[keys], scale, causal) - lse.movedim(heads, -1)[rows].T[..., None]).exp()
        wide, given = _wide(v[keys], q[rows]), dout[rows].float()
        dp = torch.einsum("qhd,khd->hqk", given, wide)
        ds = p * (dp - (given * out[rows].float()).sum(-1).T[..., None]) * scale
        dq[rows] = torch.einsum("hqk,khd->qhd", ds, _wide(k[keys], q[rows])).to(dq.dtype)
        for grad, weights, x in ((dk, ds, q[rows].float()), (dv, p, given)):
            whole = torch.einsum("hqk,qhd->khd", weights, x)
            grad[keys] = whole.unflatten(1, (k.shape[-2], -1)).sum(2).to(grad.dtype)


def _documents(q: Tensor, k: Tensor, bounds: Bounds) -> Iterator[tuple[Any, Any]]:
    """The place of the queries and the keys of each document: an index of a batch, or a slice of tokens."""
    cu_seqlens_q, cu_seqlens_k, _, _ = bounds
    if cu_seqlens_q is None or cu_seqlens_k is None:
        yield from ((index, index) for index in range(len(q)))
    else:
        ends = zip(pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True)
        yield from ((slice(*rows), slice(*keys)) for rows, keys in ends)


def _scores(q: Tensor, k: Tensor, scale: float, causal: bool) -> Tensor:
    """[Hq, Tq, Tk] of q [Tq, Hq, D] and k [Tk, Hkv, D]."""
    scores = torch.einsum("qhd,khd->hqk", q.float(), _wide(k, q)) * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + len(k) - len(q))
        scores.masked_fill_(hidden, -torch.inf)
    return scores


def _wide(x: Tensor, q: Tensor) -> Tensor:
    """Keys or values in float32, each head as often as it has query heads."""
    return x.float().repeat_interleave(q.shape[-2] // x.shape[-2], dim=-2)
