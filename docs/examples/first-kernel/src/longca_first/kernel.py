"""first: softmax attention in blocks of queries.

Shapes: q, dout and out [Tq, Hq, D], k and v [Tk, Hkv, D], lse [Hq, Tq]. The einsum letters are i (queries), j (keys),
h (KV heads), g (query heads of one KV head) and d (head dimension).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from longca import Problem
from longca.kernels.base import Plan, torch_device
from longca.masks import Form

BLOCK = 128  # queries of a block


@dataclass(eq=False)
class FirstPlan(Plan):
    """The mask on the device. Query i sees the keys from starts[n, i] to stops[n, i] − 1, for any n."""

    starts: Tensor
    stops: Tensor

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Blocks of queries, each with its visible keys: bool [i, h, g, j]."""
        mask = self.problem.concrete_mask
        keys = torch.arange(mask.seqlen_k, device=self.starts.device)
        for first in range(0, mask.seqlen_q, BLOCK):
            rows = slice(first, min(first + BLOCK, mask.seqlen_q))
            starts, stops = self.starts[:, rows, None], self.stops[:, rows, None]
            yield rows, ((starts <= keys) & (keys < stops)).any(0)[:, None, None, :]


class First:
    """Softmax attention in blocks of queries."""

    def plan(self, problem: Problem) -> FirstPlan:
        """Puts the mask's row intervals on the device."""
        device = torch_device(problem.device)
        starts, stops = (torch.from_numpy(x).to(device) for x in problem.concrete_mask.row_intervals())
        return FirstPlan(problem, Form.ROW_INTERVALS, "torch.einsum", starts, stops)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: FirstPlan, *, out: Tensor | None = None, lse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns out and lse, in the caller's buffers if there are any."""
        out = torch.empty_like(q) if out is None else out
        lse = q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32) if lse is None else lse
        for rows, visible in plan.blocks():
            scores = _scores(q[rows], k, visible, plan)
            sums = scores.logsumexp(-1, keepdim=True)
            weights = (scores - _finite(sums)).exp()
            out[rows] = torch.einsum("ihgj,jhd->ihgd", weights, v.float()).flatten(1, 2).to(out.dtype)
            lse[:, rows] = sums.flatten(1).T
        return out, lse

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: FirstPlan,
        *,
        dq: Tensor | None = None,
        dk: Tensor | None = None,
        dv: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns dq, dk and dv. Weights come from the given lse, which may be that of a larger softmax."""
        dq, dk, dv = (torch.empty_like(x) if given is None else given for x, given in ((q, dq), (k, dk), (v, dv)))
        k_sum, v_sum = torch.zeros_like(k, dtype=torch.float32), torch.zeros_like(v, dtype=torch.float32)
        scale = plan.problem.scale
        for rows, visible in plan.blocks():
            q_rows, out_rows, dout_rows = (_split_heads(x[rows], k) for x in (q, out, dout))
            sums = _split_heads(lse.T[rows, :, None], k)
            weights = (_scores(q[rows], k, visible, plan) - _finite(sums)).exp()
            delta = (dout_rows * out_rows).sum(-1, keepdim=True)
            dscores = weights * (torch.einsum("ihgd,jhd->ihgj", dout_rows, v.float()) - delta) * scale
            dq[rows] = torch.einsum("ihgj,jhd->ihgd", dscores, k.float()).flatten(1, 2).to(dq.dtype)
            k_sum += torch.einsum("ihgj,ihgd->jhd", dscores, q_rows)
            v_sum += torch.einsum("ihgj,ihgd->jhd", weights, dout_rows)
        return dq, dk.copy_(k_sum), dv.copy_(v_sum)


def _scores(q: Tensor, k: Tensor, visible: Tensor, plan: FirstPlan) -> Tensor:
    """Scaled scores [i, h, g, j]. Hidden keys have −∞."""
    scores = torch.einsum("ihgd,jhd->ihgj", _split_heads(q, k), k.float()) * plan.problem.scale
    return scores.masked_fill(~visible, -torch.inf)


def _split_heads(x: Tensor, k: Tensor) -> Tensor:
    """[i, Hq, d] → [i, h, g, d], in float32."""
    return x.float().unflatten(1, (k.shape[1], -1))


def _finite(sums: Tensor) -> Tensor:
    """lse with 0 in rows that see nothing. Their scores are −∞, so their weights become 0 and not NaN."""
    return sums.masked_fill(sums == -torch.inf, 0.0)
