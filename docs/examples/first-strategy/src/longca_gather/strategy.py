"""gather_all: each rank gathers the keys and values of all ranks, and attends to them with its own queries.

Shapes: q, out and dout [Tl, Hq, D], k and v [Tl, Hkv, D], lse [Hq, Tl], with the Tl tokens of this rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from longca import Layout, Problem
from longca.kernels.base import Kernel, Plan, nothing_seen
from longca.manifests.resolve import step_problems

# PyTorch 2.13 renamed the function.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


@dataclass(eq=False)
class GatherPlan:
    """The kernel and its plan for this rank's step. `step` is None if the rank's queries see nothing."""

    kernel: Kernel
    step: Plan | None

    @property
    def metadata_bytes(self) -> int:
        """Bytes of the mask's metadata on this rank's device."""
        return 0 if self.step is None else self.step.metadata_bytes


class GatherAll:
    """All-gather of keys and values, and all-reduce of their gradients."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._group, self._rank, self._size = mesh.get_group(), mesh.get_local_rank(), mesh.size()

    def plan(self, problem: Problem, layout: Layout, kernel: Kernel) -> GatherPlan:
        """Plans the one step of this rank."""
        (step,) = step_problems(problem, layout)[self._rank]
        return GatherPlan(kernel, None if step is None else kernel.plan(step))

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: GatherPlan, *, kept: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns out and lse of this rank's queries. Keeps the gathered keys and values for the backward."""
        keys, values = self._gather(k), self._gather(v)
        if kept is not None:
            kept += (q, keys, values)
        if plan.step is None:
            out, lse = torch.zeros_like(q), nothing_seen(q)
        else:
            out, lse = plan.kernel.forward(q, keys, values, plan.step)
        if kept is not None:
            kept += (out, lse)
        return out, lse

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: GatherPlan,
        *,
        kept: list[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns dq, dk and dv of this rank's tokens. Every rank's queries add to dk and dv."""
        saved = kept or (q, self._gather(k), self._gather(v), out, lse)
        if plan.step is None:
            dq, dk, dv = (torch.zeros_like(x) for x in saved[:3])
        else:
            dq, dk, dv = plan.kernel.backward(dout, *saved, plan.step)
        return dq, self._own_sum(dk), self._own_sum(dv)

    def _gather(self, x: Tensor) -> Tensor:
        """The tensors of all ranks, in the order of the ranks: [Tl, ...] → [ranks · Tl, ...]."""
        gathered = x.new_empty((self._size * len(x), *x.shape[1:]))
        _all_gather(gathered, x.contiguous(), group=self._group)
        return gathered

    def _own_sum(self, grad: Tensor) -> Tensor:
        """The sum over ranks, in float32 or wider, of this rank's tokens: [ranks · Tl, ...] → [Tl, ...]."""
        total = grad.to(torch.promote_types(grad.dtype, torch.float32)).contiguous()
        dist.all_reduce(total, group=self._group)
        return total.chunk(self._size)[self._rank].to(grad.dtype)
