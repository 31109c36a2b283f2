"""Sinks of problems that are measured or verified. All heads have one logit, because heads change places."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longca.kernels.base import Kernel, Plan, fill
from longca.kernels.sinks import backward_with_sinks, forward_with_sinks

__all__ = ["SINK", "WithSinks", "sinks_like", "with_sinks"]

#: A logit that takes a fifth of a window of 128 keys.
SINK = 3.5


def sinks_like(q: Tensor) -> Tensor:
    """The sinks [Hq] of queries [Tq, Hq, D]."""
    return torch.full((q.shape[1],), SINK, dtype=q.dtype, device=q.device)


def with_sinks(kernel: Kernel, plan: Plan) -> Kernel:
    """The kernel itself, or with sinks if the plan's problem has them."""
    return WithSinks(kernel) if plan.problem.sinks else kernel


class WithSinks:
    """A kernel whose calls do what `longca.attention` does for sinks. Their gradient is computed, and not returned."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def plan(self, problem: Any) -> Plan:
        """The kernel's own plan."""
        return self._kernel.plan(problem)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, **buffers: Any) -> tuple[Tensor, Tensor]:
        """Attention with sinks. See `Kernel.forward`."""
        results = forward_with_sinks(self._kernel, q, k, v, sinks_like(q), plan)
        return fill(buffers.get("out"), results[0]), fill(buffers.get("lse"), results[1])

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, plan: Plan, **buffers: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v. See `Kernel.backward`."""
        dq, dk, dv, _ = backward_with_sinks(self._kernel, dout, q, k, v, out, lse, sinks_like(q), plan)
        return fill(buffers.get("dq"), dq), fill(buffers.get("dk"), dk), fill(buffers.get("dv"), dv)
