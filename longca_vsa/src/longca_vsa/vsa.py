"""Video Sparse Attention for Hopper: fastvideo-kernel's kernels in ThunderKittens, forward and backward.

The log-sum-exp is in a unit of the kernels' own: −√head_dim times the natural logarithm, which the backward adds to
scores that are not scaled yet. It needs only that and the output of the softmax, so both may be those of a larger one.
Its gradients are sums in float32. The order of the sums of q is not fixed.

Source: csrc/attention/block_sparse_h100.cu of https://github.com/hao-ai-lab/FastVideo, fastvideo-kernel 0.3.2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longca_vsa.fastvideo import BlocksPlan, FastVideoKernel, library, padded_sums

__all__ = ["VideoSparseAttention"]

_ALIGNMENT = 16  # bytes: what TMA copies begin at


class VideoSparseAttention(FastVideoKernel):
    """Blocks of 64 by 64, as many KV heads as query heads."""

    function = "block_sparse_fwd and block_sparse_bwd (sm90)"
    fewest = 1  # it loads a row's first block before it counts; what that gives where there is none is overwritten

    def call_forward(self, q: Tensor, k: Tensor, v: Tensor, plan: BlocksPlan) -> tuple[Tensor, Tensor]:
        """The forward of `FastVideoKernel.call_forward`."""
        counts, columns = plan.by_query
        tensors = (_packed(x) for x in (q, k, v))
        out, sums = _operators().block_sparse_fwd(*tensors, columns[None], counts[None], plan.sizes)
        return out, sums[..., 0] * -(q.shape[-1] ** -0.5)

    def call_backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, plan: BlocksPlan
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The backward of `FastVideoKernel.call_backward`."""
        assert plan.by_key is not None, "the plan is of a backward"
        counts, columns = plan.by_key
        sums = padded_sums(lse, -(q.shape[-1] ** 0.5), unseen=-torch.inf)[..., None]
        tensors = (_packed(x) for x in (q, k, v, out, sums, dout))
        dq, dk, dv = _operators().block_sparse_bwd(*tensors, columns[None], counts[None], plan.sizes)
        return dq, dk, dv


def _operators() -> Any:
    return library("_C.fastvideo_kernel_ops")


def _packed(x: Tensor) -> Tensor:
    """A tensor that is contiguous and aligned: itself, or a copy."""
    found = x.contiguous()
    return found if found.data_ptr() % _ALIGNMENT == 0 else found.clone()
