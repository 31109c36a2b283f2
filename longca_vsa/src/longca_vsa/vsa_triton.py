"""Video Sparse Attention in Triton: fastvideo-kernel's kernels for any GPU that has bfloat16.

The log-sum-exp is to the base of 2. The forward's sums have no fixed order from process to process: its first use at
each length times several configurations, and the order depends on the winner. The library's backward is not offered,
because it rounds scaled keys to bfloat16.

Source: triton_kernels/block_sparse_attn_triton.py of https://github.com/hao-ai-lab/FastVideo, fastvideo-kernel 0.3.2.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from longca_vsa.fastvideo import BlocksPlan, FastVideoKernel, library

__all__ = ["VideoSparseAttentionTriton"]


class VideoSparseAttentionTriton(FastVideoKernel):
    """Blocks of 64 by 64, as many KV heads as query heads."""

    function = "triton_block_sparse_attn"

    def call_forward(self, q: Tensor, k: Tensor, v: Tensor, plan: BlocksPlan) -> tuple[Tensor, Tensor]:
        """The forward of `FastVideoKernel.call_forward`. It reads tensors in place."""
        counts, columns = plan.by_query
        out, sums = _functions().triton_block_sparse_attn_forward(q, k, v, columns[None], counts[None], plan.sizes)
        return out, sums * math.log(2)


def _functions() -> Any:
    return library("triton_kernels.block_sparse_attn_triton")
