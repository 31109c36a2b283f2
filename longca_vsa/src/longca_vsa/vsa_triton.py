"""Video Sparse Attention in Triton: fastvideo-kernel's kernels for any GPU that has bfloat16.

The log-sum-exp is to the base of 2. The backward takes any output and log-sum-exp. It gathers for keys and for queries,
and its sums have a fixed order. The forward's sums have no fixed order from process to process: its first use at each
length times several configurations, and the order depends on the winner.

Source: triton_kernels/block_sparse_attn_triton.py of https://github.com/hao-ai-lab/FastVideo, fastvideo-kernel 0.3.2.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from longca_vsa.fastvideo import BlocksPlan, FastVideoKernel, library, padded_sums

__all__ = ["VideoSparseAttentionTriton"]


class VideoSparseAttentionTriton(FastVideoKernel):
    """Blocks of 64 by 64, as many KV heads as query heads."""

    function = "triton_block_sparse_attn"

    def call_forward(self, q: Tensor, k: Tensor, v: Tensor, plan: BlocksPlan) -> tuple[Tensor, Tensor]:
        """The forward of `FastVideoKernel.call_forward`. It reads tensors in place."""
        counts, columns = plan.by_query
        out, sums = _functions().triton_block_sparse_attn_forward(q, k, v, columns[None], counts[None], plan.sizes)
        return out, sums * math.log(2)

    def call_backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, plan: BlocksPlan
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The backward of `FastVideoKernel.call_backward`. It assumes one layout of all tensors."""
        assert plan.by_key is not None, "the plan is of a backward"
        sums = padded_sums(lse, 1 / math.log(2), unseen=torch.inf)
        tensors = (x.contiguous() for x in (dout, q, k, v, out, sums))
        lists = (x[None] for lists in (plan.by_query, plan.by_key) for x in (lists.columns, lists.counts))
        dq, dk, dv = _functions().triton_block_sparse_attn_backward(*tensors, *lists, plan.sizes)
        return dq, dk, dv


def _functions() -> Any:
    return library("triton_kernels.block_sparse_attn_triton")
