"""naive: attention by the book, blockwise, on any device and any mask. It is the oracle for other kernels.

It computes in float64 for float64 inputs and in float32 for all other inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from longca.kernels.base import Plan, fill
from longca.manifests import Problem
from longca.masks import Form
from longca_builtin.blockwise import attention_backward, attention_forward

__all__ = ["Naive"]


class Naive:
    """Softmax attention, straight from its definition."""

    def plan(self, problem: Problem) -> Plan:
        """Prepares nothing, because blocks of the mask are made on demand."""
        block_sparse = problem.mask.admits(Form.BLOCK_SPARSE)
        return Plan(problem, Form.BLOCK_SPARSE if block_sparse else Form.ROW_INTERVALS, "torch.matmul")

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, *, out: Tensor | None = None, lse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of q to k and v. See `Kernel.forward`."""
        problem = plan.problem
        mask, scale = problem.concrete_mask, problem.scale
        result, sums = attention_forward(q, k, v, mask, scale, _dtype(q), softcap=problem.softcap)
        return fill(out, result.to(q.dtype)), fill(lse, sums)

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: Plan,
        *,
        dq: Tensor | None = None,
        dk: Tensor | None = None,
        dv: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v. See `Kernel.backward`."""
        problem = plan.problem
        mask, scale = problem.concrete_mask, problem.scale
        grads = attention_backward(dout, q, k, v, out, lse, mask, scale, _dtype(q), softcap=problem.softcap)
        first, second, third = (
            fill(buffer, grad.to(q.dtype)) for buffer, grad in zip((dq, dk, dv), grads, strict=True)
        )
        return first, second, third


def _dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32
