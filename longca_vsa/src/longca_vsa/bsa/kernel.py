"""bsa: block-sparse attention in Triton, for blocks of every size, grouped heads and both directions.

Each block of queries walks over a list of the runs of key blocks that it sees, and in the backward each block of keys
over the queries that see it. Where the query heads of a group share their mask, they are rows of one tile, so that
small blocks fill the tensor cores too.

Shapes: q and out [Tq, Hq, D], k and v [Tk, Hkv, D], lse [Hq, Tq].

Sources: LongCA-bench (arXiv 2510.17896), whose open question this answers; FlashAttention-2 (arXiv 2307.08691), whose
algorithms the kernels follow; the code is LongCA's own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from longca import Problem
from longca.kernels.base import fill, readable
from longca_vsa.bsa.configs import Configs
from longca_vsa.bsa.plan import BSAPlan, make_plan

__all__ = ["BlockSparseAttention"]


class BlockSparseAttention:
    """Block-sparse attention in Triton.

    Args:
        configs: What to compile the kernels with; None for what `configs.py` has for the head dimension, device and
            blocks.
    """

    def __init__(self, configs: Configs | None = None) -> None:
        self.configs = configs

    def plan(self, problem: Problem) -> BSAPlan:
        """Puts lists and tiles on the device: those of the backward only where it is asked for."""
        return make_plan(problem, self.configs)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        plan: BSAPlan,
        *,
        out: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Attention of q to k and v; see `longca.kernels.base.Kernel.forward`."""
        from longca_vsa.bsa.launches import launch_attend  # brings in Triton, without which this can be inspected
        from longca_vsa.bsa.sources import on_device_of

        q, k, v = (readable(x) for x in (q, k, v))
        result = _writable(out, q)
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
        plan: BSAPlan,
        *,
        dq: Tensor | None = None,
        dk: Tensor | None = None,
        dv: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v; see `longca.kernels.base.Kernel.backward`."""
        from longca_vsa.bsa.launches import launch_dkdv, launch_dq, launch_prepare
        from longca_vsa.bsa.sources import on_device_of

        q, k, v, out, dout = (readable(x) for x in (q, k, v, out, dout))
        dq_result, dk_result, dv_result = _writable(dq, q), _writable(dk, k), _writable(dv, v)
        with on_device_of(q):
            prepared = launch_prepare(dout, out, lse)
            launch_dkdv(dout, q, k, v, prepared, dk_result, dv_result, plan)
            launch_dq(dout, q, k, v, prepared, dq_result, plan)
        return fill(dq, dq_result), fill(dk, dk_result), fill(dv, dv_result)


def _writable(buffer: Tensor | None, like: Tensor) -> Tensor:
    """Where a kernel writes: the caller's buffer, or a new tensor where there is none that it can write to."""
    if buffer is not None and buffer.stride(-1) == 1:
        return buffer
    return torch.empty(like.shape, dtype=like.dtype, device=like.device)
