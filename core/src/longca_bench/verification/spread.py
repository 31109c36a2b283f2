"""Spread: the distance that rounding alone may move each row of a result.

A result row is a sum of many terms, each with its own rounding error. The errors add up like a random walk, to about
one ulp times the root of the sum of the squared terms. A gradient can cancel: dq of the first row of a causal mask is
exactly 0. The spread is its only scale, because any error is infinite relative to such a row.

    out_i   Σⱼ p_ij² |v_j|²            dv_j   Σᵢ p_ij² |dout_i|²
    dq_i    scale² Σⱼ g_ij |k_j|²      dk_j   scale² Σᵢ g_ij |q_i|²

with g_ij = p_ij² (dp_ij² + δ_i² + σ_i²), dp = dout·v, δ = dout·out, and σ² the sum of the squared terms of δ.
p and dp are those of the reference, which shows them block by block while it computes. A soft cap leaves the spread as
it is: it bends dq and dk by 1 − t², and rounding moves t = tanh(s/c) by ulps of 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from longca_bench.verification.inputs import Inputs
from longca_bench.verification.tokens import by_tokens
from longca_builtin.blockwise import QueryBlock

__all__ = ["BackwardSpread", "ForwardSpread"]


class ForwardSpread:
    """The root of the summed squares of the terms of each row of the output."""

    def __init__(self, inputs: Inputs) -> None:
        self._v = _squares(inputs.v)
        self._out = torch.zeros(inputs.q.shape[:2], device=inputs.q.device)

    def see(self, block: QueryBlock, weights: Tensor) -> None:
        """Takes the weights [Hkv, G, queries, keys] of a block."""
        self._out[block.queries] = _over_keys(weights.square(), self._v[block.keys])

    @property
    def out(self) -> Tensor:
        """Of the output: [Tq, Hq]."""
        return self._out.sqrt()


class BackwardSpread:
    """The roots of the summed squares of the terms of each row of the gradients.

    `out` [Tq, Hq, D] is the output of the whole softmax.
    """

    def __init__(self, inputs: Inputs, scale: float, out: Tensor) -> None:
        self._scale = abs(scale)
        self._q, self._k, self._dout = (_squares(x) for x in (inputs.q, inputs.k, inputs.dout))
        self._rest = by_tokens(_rest, inputs.dout, out)  # δ² + σ²: [Tq, Hq]
        self._dq, self._dk, self._dv = (torch.zeros_like(x) for x in (self._q, self._k, self._k))

    def see(self, block: QueryBlock, weights: Tensor, dp: Tensor) -> None:
        """Takes the weights and dout·v of a block: [Hkv, G, queries, keys] each."""
        queries, keys = block.queries, block.keys
        squares = weights.square()
        self._dv[keys] += _over_queries(squares, self._dout[queries])
        rest = self._rest[queries].T.unflatten(0, weights.shape[:2])[..., None]
        slopes = dp.square().add_(rest).mul_(squares)
        self._dq[queries] = _over_keys(slopes, self._k[keys])
        self._dk[keys] += _over_queries(slopes, self._q[queries])

    @property
    def rows(self) -> dict[str, Tensor]:
        """Of dq [Tq, Hq], dk [Tk, Hkv] and dv [Tk, Hkv]."""
        return {"dq": self._dq.sqrt() * self._scale, "dk": self._dk.sqrt() * self._scale, "dv": self._dv.sqrt()}


def _squares(x: Tensor) -> Tensor:
    """The squared length of each row in float32: [T, H]."""
    return by_tokens(lambda rows: rows.float().square().sum(-1), x)


def _rest(dout: Tensor, out: Tensor) -> Tensor:
    """δ² + σ² of each row: [tokens, H]."""
    terms = dout.float() * out.float()
    return terms.sum(-1).square() + terms.square_().sum(-1)


def _over_keys(terms: Tensor, squares: Tensor) -> Tensor:
    """Σⱼ of terms [Hkv, G, queries, keys] times squares [keys, Hkv]: [queries, Hq]."""
    return (terms @ squares.to(terms.dtype).T[:, None, :, None])[..., 0].flatten(0, 1).T.float()


def _over_queries(terms: Tensor, squares: Tensor) -> Tensor:
    """Σᵢ over queries and the group's heads of terms times squares [queries, Hq]: [keys, Hkv]."""
    grouped = squares.to(terms.dtype).T.unflatten(0, terms.shape[:2])[..., None, :]  # [Hkv, G, 1, queries]
    return (grouped @ terms).sum((1, 2)).T.float()
