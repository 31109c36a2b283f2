"""flashmask: FlashAttention-2 in Triton that skips hidden tiles and masks partly visible ones by intervals.

A mask reaches the kernels as each query's visible keys and, for the backward's dk and dv, each key's visible queries,
in at most eight intervals: O(S) memory. Beside them goes a table of runs of tiles: a program walks its runs, and looks
at its intervals only in tiles that are partly visible.

Shapes: q and out [Tq, Hq, D], k and v [Tk, Hkv, D], lse [Hq, Tq].

Source: FlashMask (arXiv 2410.01359), which this follows in idea; its four bounds a key are the complement of at most
two intervals of queries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from longca import Problem
from longca.kernels.base import fill, readable
from longca_flashmask.buffers import on_device_of, writable
from longca_flashmask.configs import Configs, choose
from longca_flashmask.plan import FlashMaskPlan, make_plan

__all__ = ["FlashMask"]


class FlashMask:
    """FlashMask in Triton.

    Args:
        configs: What to compile the kernels with; None for what `configs.py` has for the head dimension and device.
    """

    def __init__(self, configs: Configs | None = None) -> None:
        self.configs = configs

    def plan(self, problem: Problem) -> FlashMaskPlan:
        """Puts intervals and tiles on the device: those of the backward only where it is asked for."""
        return make_plan(problem, self.configs or choose(problem.head_dim, problem.device.capability or (0, 0)))

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        plan: FlashMaskPlan,
        *,
        out: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Attention of q to k and v; see `longca.kernels.base.Kernel.forward`."""
        from longca_flashmask.launches import launch_attend  # brings in Triton, without which this can be inspected

        q, k, v = (readable(x) for x in (q, k, v))
        result = writable(out, q)
        sums = torch.empty((q.shape[1], q.shape[0]), dtype=torch.float32, device=q.device) if lse is None else lse
        with on_device_of(q):
            launch_attend(q, k, v, result, sums, plan)
        return fill(out, result), sums

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: FlashMaskPlan,
        *,
        dq: Tensor | None = None,
        dk: Tensor | None = None,
        dv: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v; see `longca.kernels.base.Kernel.backward`."""
        from longca_flashmask.launches import launch_dkdv, launch_dq, launch_prepare

        q, k, v, out, dout = (readable(x) for x in (q, k, v, out, dout))
        dq_result, dk_result, dv_result = writable(dq, q), writable(dk, k), writable(dv, v)
        with on_device_of(q):
            prepared = launch_prepare(dout, out, lse, plan)
            launch_dkdv(dout, q, k, v, prepared, dk_result, dv_result, plan)
            launch_dq(dout, q, k, v, prepared, dq_result, plan)
        return fill(dq, dq_result), fill(dk, dk_result), fill(dv, dv_result)
