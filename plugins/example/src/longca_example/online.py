"""online: attention tile by tile, with a softmax that is corrected as keys come in. FlashAttention in PyTorch.

A tile is a block of queries against a block of keys. Hidden tiles are never computed. No tensor is larger than a tile's
scores, so memory is linear in the sequence length. Sums have float32, or float64 for float64 inputs.

Shapes: q and out [Tq, Hq, D], k and v [Tk, Hkv, D], lse [Hq, Tq]. Inside, tensors of queries split their heads into
[queries, Hkv, G, ·], where G query heads share a KV head. The einsum letters are i (queries), j (keys), h (KV heads),
g (the G query heads) and d (head dimension).

Sources: FlashAttention (arXiv 2205.14135, algorithms 1 and 4), FlashAttention-2 (arXiv 2307.08691, section 3.1),
and the online softmax of Milakov and Gimelshein (arXiv 1805.02867).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from longca import Problem
from longca.kernels.base import Plan, torch_device
from longca.masks import Form

__all__ = ["BLOCK", "Online", "OnlinePlan"]

BLOCK = 128  # queries and keys of a tile


@dataclass(eq=False)
class OnlinePlan(Plan):
    """A plan for online.

    Attributes:
        starts: First key of each interval of each query: int32 [n, Tq].
        stops: One past the last key of each interval of each query: int32 [n, Tq].
        runs: For each block of queries, the runs of visible key blocks, as (first, one past the last, whether some
            query does not see some key in the run).
    """

    starts: Tensor
    stops: Tensor
    runs: list[list[tuple[int, int, bool]]]

    def key_blocks(self, queries: slice) -> Iterator[tuple[slice, Tensor | None]]:
        """The key blocks that a block of queries visits, each with its hidden pairs.

        Yields:
            A slice of the keys, and the hidden pairs as bool [queries, 1, 1, keys]. None if every pair is visible.
        """
        num_keys = self.problem.concrete_mask.seqlen_k
        for first, last, is_partial in self.runs[queries.start // BLOCK]:
            for start in range(first * BLOCK, last * BLOCK, BLOCK):
                keys = slice(start, min(start + BLOCK, num_keys))
                yield keys, self._hidden(queries, keys) if is_partial else None

    def _hidden(self, queries: slice, keys: slice) -> Tensor:
        j = torch.arange(keys.start, keys.stop, device=self.starts.device)
        starts, stops = self.starts[:, queries, None], self.stops[:, queries, None]  # [n, queries, 1]
        visible = ((starts <= j) & (j < stops)).any(0)
        return ~visible[:, None, None, :]


class Online:
    """Blockwise attention with an online softmax."""

    def plan(self, problem: Problem) -> OnlinePlan:
        """Puts the row intervals on the device, and sorts the tiles into hidden, partly and fully visible ones."""
        mask, device = problem.concrete_mask, torch_device(problem.device)
        starts, stops = (torch.from_numpy(x).to(device) for x in mask.row_intervals())
        blocks = mask.blocks(BLOCK, BLOCK).by_query
        runs: list[list[tuple[int, int, bool]]] = [[] for _ in range(blocks.num_rows)]
        for found, is_partial in ((blocks.full, False), (blocks.partial, True)):
            for row, first, last in found.tolist():
                runs[row].append((first, last, is_partial))
        return OnlinePlan(problem, Form.ROW_INTERVALS, "torch.einsum", starts, stops, runs)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: OnlinePlan, *, out: Tensor | None = None, lse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of q to k and v. See `longca.kernels.base.Kernel.forward`."""
        out = torch.empty_like(q) if out is None else out
        lse = q.new_empty((q.shape[1], q.shape[0]), dtype=_wide(q)) if lse is None else lse
        for queries in _query_blocks(q):
            q_block = _split_heads(q[queries], k) * plan.problem.scale
            # Over the keys so far: the largest score, the sum of exp(score − largest), and the sum of these weights
            # times v.
            peak = torch.full_like(q_block[..., :1], -torch.inf)
            total, weighted = torch.zeros_like(peak), torch.zeros_like(q_block)
            for keys, hidden in plan.key_blocks(queries):
                scores = _scores(q_block, k[keys], hidden)
                new_peak = torch.maximum(peak, scores.amax(-1, keepdim=True))
                # A row that has seen nothing has no peak. Any finite number works, because all its weights are 0.
                anchor = new_peak.masked_fill(new_peak == -torch.inf, 0.0)
                weights, correction = (scores - anchor).exp(), (peak - anchor).exp()
                total = total * correction + weights.sum(-1, keepdim=True)
                weighted = weighted * correction + torch.einsum("ihgj,jhd->ihgd", weights, v[keys].to(weights.dtype))
                peak = new_peak
            out[queries] = (weighted / total.masked_fill(total == 0, 1.0)).flatten(1, 2).to(out.dtype)
            lse[:, queries] = (peak + total.log()).flatten(1).T.to(lse.dtype)
        return out, lse

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: OnlinePlan,
        *,
        dq: Tensor | None = None,
        dk: Tensor | None = None,
        dv: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v. See `longca.kernels.base.Kernel.backward`.

        A weight is exp(score − lse) for any other keys. Nothing is normalised again, so out and lse may be those of a
        larger softmax.
        """
        dq, dk, dv = (torch.empty_like(x) if dx is None else dx for x, dx in ((q, dq), (k, dk), (v, dv)))
        k_sum, v_sum = (torch.zeros(x.shape, dtype=_wide(x), device=x.device) for x in (k, v))
        for queries in _query_blocks(q):
            q_block, do_block, out_block = (_split_heads(x[queries], k) for x in (q, dout, out))
            q_block = q_block * plan.problem.scale
            delta = (do_block * out_block).sum(-1, keepdim=True)  # Σⱼ weightⱼ·(dout·vⱼ), for the softmax's gradient
            lse_block = _split_heads(lse.T[queries, :, None], k)
            lse_block = lse_block.masked_fill(lse_block == -torch.inf, 0.0)  # the row sees nothing: its scores are −∞
            q_sum = torch.zeros_like(q_block)
            for keys, hidden in plan.key_blocks(queries):
                k_block, v_block = k[keys].to(q_sum.dtype), v[keys].to(q_sum.dtype)
                weights = (_scores(q_block, k_block, hidden) - lse_block).exp()
                dscores = weights * (torch.einsum("ihgd,jhd->ihgj", do_block, v_block) - delta)
                q_sum += torch.einsum("ihgj,jhd->ihgd", dscores, k_block)
                k_sum[keys] += torch.einsum("ihgj,ihgd->jhd", dscores, q_block)
                v_sum[keys] += torch.einsum("ihgj,ihgd->jhd", weights, do_block)
            dq[queries] = (q_sum * plan.problem.scale).flatten(1, 2).to(dq.dtype)
        return dq, dk.copy_(k_sum), dv.copy_(v_sum)


def _query_blocks(q: Tensor) -> Iterator[slice]:
    for start in range(0, q.shape[0], BLOCK):
        yield slice(start, min(start + BLOCK, q.shape[0]))


def _wide(x: Tensor) -> torch.dtype:
    """The dtype of sums."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _split_heads(x: Tensor, k: Tensor) -> Tensor:
    """[queries, Hq, ·] → [queries, Hkv, G, ·], in the dtype of sums."""
    return x.to(_wide(x)).unflatten(1, (k.shape[1], -1))


def _scores(q_block: Tensor, k_block: Tensor, hidden: Tensor | None) -> Tensor:
    """Scores [queries, Hkv, G, keys] of scaled queries, −∞ where the mask hides the key."""
    scores = torch.einsum("ihgd,jhd->ihgj", q_block, k_block.to(q_block.dtype))
    return scores if hidden is None else scores.masked_fill_(hidden, -torch.inf)
