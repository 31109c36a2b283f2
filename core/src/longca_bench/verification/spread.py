"""Spread: the distance that rounding alone may move each row of a result.

A result row is a sum of many terms, each with its own rounding error. The errors add up like a random walk, to about
one ulp times the root of the sum of the squared terms. A gradient can cancel: dq of the first row of a causal mask is
exactly 0. The spread is its only scale, because any error is infinite relative to such a row.

    out_i   Σⱼ p_ij² |v_j|²            dv_j   Σᵢ p_ij² |dout_i|²
    dq_i    scale² Σⱼ g_ij |k_j|²      dk_j   scale² Σᵢ g_ij |q_i|²

with g_ij = p_ij² (dp_ij² + δ_i² + σ_i²), dp = dout·v, δ = dout·out, and σ² the sum of the squared terms of δ.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longca.manifests import Problem
from longca_bench.verification.inputs import Inputs
from longca_builtin.blockwise import ample_scores, group_heads, masked_scores, query_blocks, softmax_weights

__all__ = ["Spread", "spread"]


@dataclass(frozen=True)
class Spread:
    """The root of the summed squares of each row's terms.

    Attributes:
        out: [Tq, Hq].
        dq: [Tq, Hq].
        dk: [Tk, Hkv].
        dv: [Tk, Hkv].
    """

    out: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor


def spread(problem: Problem, inputs: Inputs, out: Tensor, lse: Tensor) -> Spread:
    """The spread of each row, computed in float32.

    Args:
        problem: The problem of the tensors.
        inputs: The tensors.
        out: The output [Tq, Hq, D]. Under context parallelism it is the merged output.
        lse: The log-sum-exp [Hq, Tq] of the output.
    """
    q, k, v, dout, out = (x.float() for x in (inputs.q, inputs.k, inputs.v, inputs.dout, out))
    heads_kv = k.shape[1]
    squares = {name: x.square().sum(-1) for name, x in (("q", q), ("k", k), ("v", v), ("dout", dout))}
    terms = dout * out
    rest = terms.sum(-1).square() + terms.square().sum(-1)  # δ² + σ²: [Tq, Hq]
    sums = Spread(*(torch.zeros(x.shape[:2], device=q.device) for x in (q, q, k, k)))
    for block in query_blocks(problem.concrete_mask, q.shape[1], q.device, ample_scores(q.device)):
        queries, keys = block.queries, block.keys
        weights = softmax_weights(
            masked_scores(q[queries], k[keys], block.visible, problem.scale), lse[:, queries].float()
        ).square_()  # [Hkv, G, queries, keys]
        dp = group_heads(dout[queries], heads_kv) @ v[keys].permute(1, 2, 0)[:, None]
        slopes = dp.square_().add_(rest[queries].T.unflatten(0, (heads_kv, -1))[..., None]).mul_(weights)
        sums.out[queries] = _over_keys(weights, squares["v"][keys])
        sums.dq[queries] = _over_keys(slopes, squares["k"][keys])
        sums.dv[keys] += _over_queries(weights, squares["dout"][queries])
        sums.dk[keys] += _over_queries(slopes, squares["q"][queries])
    scale = abs(problem.scale)
    return Spread(sums.out.sqrt(), sums.dq.sqrt() * scale, sums.dk.sqrt() * scale, sums.dv.sqrt())


def _over_keys(terms: Tensor, squares: Tensor) -> Tensor:
    """Σⱼ of terms [Hkv, G, queries, keys] times squares [keys, Hkv]: [queries, Hq]."""
    return (terms @ squares.T[:, None, :, None])[..., 0].flatten(0, 1).T


def _over_queries(terms: Tensor, squares: Tensor) -> Tensor:
    """Σᵢ over queries and the group's heads of terms times squares [queries, Hq]: [keys, Hkv]."""
    grouped = squares.T.unflatten(0, terms.shape[:2])[..., None, :]  # [Hkv, G, 1, queries]
    return (grouped @ terms).sum((1, 2)).T
