"""FlashAttention-2 with block masks: the `block_sparse_attn` package, blocks of 128, forward and backward.

The package is published as source alone. It was built for compute capability 9.0. Every offer was verified on an H200.

A mask lists the kept blocks of each of its heads and rows of blocks, in descending order and followed by −1. The
backward has the same by columns. Another list has the number of each head's mask, from 1, so heads share masks without
copies. A row without a block has the output 0 and the log-sum-exp +∞.

Source: csrc/block_sparse_attn/flash_api.cpp of https://github.com/mit-han-lab/Block-Sparse-Attention, version 0.0.2.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longca import Problem
from longca.kernels.base import Plan, fill, no_gradients, nothing_seen, torch_device
from longca.masks import BlockSparseMask, Form
from longca.metadata.kept_blocks import kept_blocks

__all__ = ["FA2Sparse", "FA2SparsePlan"]

_BLOCKS = (128, 128)  # queries and keys
_NO_BAND = (False, -1, -1)  # neither causal, nor a window to the left or the right
_ALIGNMENT = 16  # bytes that are loaded at once


@dataclass(eq=False, kw_only=True)
class FA2SparsePlan(Plan):
    """A plan for fa2_sparse.

    Attributes:
        rows: Key blocks of each row of blocks, descending, then −1: int32 [1, mask heads, query blocks, key blocks].
        columns: Query blocks of each column, descending, then −1: int32 [1, mask heads, key blocks, query blocks]. None
            in a plan of the forward alone.
        masks: The number of each query head's mask, from 1: int32 [Hq].
        streaming: Sinks and windows of streaming heads, of which there are none: int32 [2 · Hq].
        cu_seqlens_q: 0 and Tq: int32 [2].
        cu_seqlens_k: 0 and Tk: int32 [2].
        rng_state: The state of dropout's random numbers: int64 [2]. The backward reads it even without dropout.
        is_empty: Whether no query sees anything. Then nothing runs.
    """

    rows: Tensor
    columns: Tensor | None
    masks: Tensor
    streaming: Tensor
    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    rng_state: Tensor
    is_empty: bool


class FA2Sparse:
    """Block-Sparse-Attention of the MIT HAN Lab."""

    def plan(self, problem: Problem) -> FA2SparsePlan:
        """The mask's blocks by rows and columns, on the problem's device."""
        mask, device = problem.concrete_mask, torch_device(problem.device)
        assert isinstance(mask, BlockSparseMask), "the offers are of block-sparse masks"
        kept = kept_blocks(mask, device)
        heads = torch.arange(problem.heads_q, dtype=torch.int32, device=device)
        numbers = (torch.tensor([0, n], dtype=torch.int32, device=device) for n in (mask.seqlen_q, mask.seqlen_k))
        cu_seqlens_q, cu_seqlens_k = numbers
        return FA2SparsePlan(
            problem,
            Form.BLOCK_SPARSE,
            "block_sparse_attn 0.0.2",
            rows=_descending(kept)[None],
            columns=_descending(kept.mT)[None] if problem.direction == "backward" else None,
            masks=heads // (problem.heads_q // mask.heads) + 1,
            streaming=torch.zeros(2 * problem.heads_q, dtype=torch.int32, device=device),
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            rng_state=torch.zeros(2, dtype=torch.int64, device=device),
            is_empty=not kept.any(),
        )

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        plan: FA2SparsePlan,
        *,
        out: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Attention of q to k and v, as `Kernel.forward` describes it."""
        if plan.is_empty:
            return fill(out, torch.zeros_like(q)), fill(lse, nothing_seen(q))
        exact_streaming, return_softmax, generator = False, False, None
        result, sums, *_ = _operators().fwd_block(
            *(_loadable(x) for x in (q, k, v)),
            *(plan.cu_seqlens_q, plan.cu_seqlens_k, plan.masks, plan.streaming, plan.rows),
            *_lengths_and_scale(plan),
            *_NO_BAND,
            *_BLOCKS,
            *(exact_streaming, return_softmax, generator),
        )
        return fill(out, result), fill(lse, sums[0].masked_fill(sums[0] == torch.inf, -torch.inf))

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: FA2SparsePlan,
        *,
        dq: Tensor | None = None,
        dk: Tensor | None = None,
        dv: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v, as `Kernel.backward` describes them."""
        if plan.is_empty:
            return no_gradients((q, k, v), (dq, dk, dv))
        grads = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        sums = lse.masked_fill(lse == -torch.inf, torch.inf)[None].contiguous()
        zero_first, deterministic, generator = True, False, None
        _operators().bwd_block(
            *(_loadable(x) for x in (dout, q, k, v, out)),
            *(sums, *grads),
            *(plan.cu_seqlens_q, plan.cu_seqlens_k, plan.masks, plan.streaming, plan.columns),
            *_lengths_and_scale(plan),
            zero_first,
            *_NO_BAND,
            *_BLOCKS,
            *(deterministic, generator, plan.rng_state),
        )
        first, second, third = (fill(buffer, grad) for buffer, grad in zip((dq, dk, dv), grads, strict=True))
        return first, second, third


def _lengths_and_scale(plan: FA2SparsePlan) -> tuple[int, int, float, float]:
    """The longest query and key sequence, the probability of dropout, and the factor on the scores."""
    mask = plan.problem.concrete_mask
    return mask.seqlen_q, mask.seqlen_k, 0.0, plan.problem.scale


def _descending(kept: Tensor) -> Tensor:
    """The columns of each row [heads, rows, columns] that are kept, in descending order and followed by −1."""
    every = torch.arange(kept.shape[2], dtype=torch.int32, device=kept.device)
    minus = every.new_full((), -1)
    return torch.stack([torch.where(head, every, minus).sort(-1, descending=True).values for head in kept])


def _loadable(x: Tensor) -> Tensor:
    """A tensor whose rows begin at aligned addresses: itself, or a contiguous copy."""
    apart = [x.data_ptr(), *(stride * x.element_size() for stride in x.stride()[:2])]
    in_place = x.stride(2) == 1 and all(place % _ALIGNMENT == 0 for place in apart)
    return x if in_place else x.clone(memory_format=torch.contiguous_format)


def _operators() -> Any:
    return importlib.import_module("block_sparse_attn_cuda")
