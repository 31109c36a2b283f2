"""bsa_gluon: the forward of block-sparse attention on Hopper's own instructions.

Shapes: q and out [Tq, Hq, D], k and v [Tk, Hkv, D], lse [Hq, Tq].
"""

from __future__ import annotations

import torch
from torch import Tensor

from longca import Problem
from longca.kernels.base import fill, nothing_seen, on_device_of
from longca_vsa.bsa_gluon.plan import GluonPlan, make_plan

__all__ = ["BlockSparseGluon"]

_ALIGNMENT = 16  # bytes from which the tensor memory accelerator copies


class BlockSparseGluon:
    """Block-sparse attention in Gluon."""

    def plan(self, problem: Problem) -> GluonPlan:
        """Puts the lists of key blocks and the tiles on the problem's device."""
        return make_plan(problem)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: GluonPlan, *, out: Tensor | None = None, lse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of q to k and v. See `Kernel.forward`."""
        if 0 in (q.numel(), k.numel()):
            return fill(out, torch.zeros_like(q)), fill(lse, nothing_seen(q))
        q, k, v = (x if _has_aligned_strides(x) else x.clone(memory_format=torch.contiguous_format) for x in (q, k, v))
        result = out
        if result is None or not _has_aligned_strides(result):
            result = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if lse is None:
            lse = torch.empty((q.shape[1], q.shape[0]), dtype=torch.float32, device=q.device)
        from longca_vsa.bsa_gluon.launch import launch_attend  # brings in Triton

        with on_device_of(q):
            launch_attend(q, k, v, result, lse, plan)
        return fill(out, result), lse


def _has_aligned_strides(x: Tensor) -> bool:
    """Whether a descriptor can say where a tensor's tokens and heads lie."""
    steps = [stride for size, stride in zip(x.shape[:2], x.stride()[:2], strict=True) if size > 1]
    aligned = all(stride > 0 and stride * x.element_size() % _ALIGNMENT == 0 for stride in steps)
    return x.stride(2) == 1 and aligned and x.data_ptr() % _ALIGNMENT == 0
