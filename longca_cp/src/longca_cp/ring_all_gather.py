"""ring_all_gather: each rank computes its own queries on the keys and values that it gathers from the others.

It gathers only the keys that its queries see, a chunk of heads at a time. While one chunk is computed, the next is on
its way. The backward gathers them once more and does not keep them. It returns the gradients, which are summed in
float32. `longca_cp.kv_gather` gathers by collectives, and `longca_cp.pushed_gather` by pushes.

Sources: Llama 3 (arXiv 2407.21783, section 3.3.2), and Megatron-LM's all-gather context parallelism.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from longca.kernels.base import Kernel, new_out, nothing_seen, torch_device
from longca.kernels.sinks import add_sinks
from longca.manifests import Layout, Problem, Transport
from longca.parallel.strategy import Kept
from longca_cp.exchange import Arrival, axes_of
from longca_cp.kv_gather import Collected, gathering
from longca_cp.overlap import Ahead, gather_chunks
from longca_cp.pushed_gather import PushedRows
from longca_cp.step_plans import Gradients, StepPlans, attend, differentiate, plan_chunks

__all__ = ["AllGatherPlan", "RingAllGather"]


@dataclass(eq=False)
class AllGatherPlan(StepPlans):
    """A plan for ring_all_gather. Its steps are chunks of heads."""

    gathering: Collected | PushedRows

    def heads(self, chunk: int) -> tuple[slice, slice]:
        """The query heads and the KV heads of a chunk."""
        query, kv = (heads // len(self.steps) for heads in (self.problem.heads_q, self.problem.num_heads_kv))
        return slice(query * chunk, query * (chunk + 1)), slice(kv * chunk, kv * (chunk + 1))


class RingAllGather:
    """Keys and values gathered. See `longca.parallel.strategy.Strategy`."""

    def __init__(self, mesh: DeviceMesh, *, transport: Transport = Transport.AUTO) -> None:
        self._rank, (self._axis,) = axes_of(mesh, ("ring",), transport)
        self.transports = (self._axis.transport,)

    def plan(self, problem: Problem, layout: Layout, kernel: Kernel) -> AllGatherPlan:
        """Plans the chunks of heads of this rank's step."""
        count = gather_chunks(problem, self._axis.by_nccl, self._axis.link is not None)
        chunks = plan_chunks(problem, layout, self._rank, kernel, count)
        if self._axis.link is None:
            way: Collected | PushedRows = gathering(self._axis, layout, torch_device(problem.device))
        else:
            way = PushedRows(self._axis, self._axis.link, problem, layout, len(chunks))
        return AllGatherPlan(problem, layout, self._rank, kernel, chunks, way)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: AllGatherPlan, *, kept: Kept = None, sinks: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of this rank's tokens. It keeps nothing."""
        out, lse = new_out(q, v), nothing_seen(q)
        plan.gathering.begin()
        ahead = self._ahead(plan, k, v)
        for chunk, step in enumerate(plan.steps):
            heads, _ = plan.heads(chunk)
            with ahead.next() as kv:
                attend(plan.kernel, step, q[:, heads], *kv, out=out[:, heads], lse=lse[heads])
            plan.gathering.done(chunk)
        return (out, lse) if sinks is None else add_sinks(out, lse, sinks)

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: AllGatherPlan,
        *,
        kept: Kept = None,
    ) -> Gradients:
        """Gradients of this rank's tokens."""
        dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
        leaving: list[Callable[[], None]] = []
        plan.gathering.begin(backward=True)
        ahead = self._ahead(plan, k, v)
        for chunk, step in enumerate(plan.steps):
            heads, heads_kv = plan.heads(chunk)
            with ahead.next() as kv:
                grads, of_kv = plan.gathering.gradients(*kv)
                saved = q[:, heads], *kv, out[:, heads], lse[heads]
                differentiate(plan.kernel, step, dout[:, heads], saved, (dq[:, heads], *of_kv))
            plan.gathering.done(chunk)
            leaving.append(plan.gathering.scatter(chunk, grads, (dk[:, heads_kv], dv[:, heads_kv])))
            if chunk > 0:
                leaving.pop(0)()
        leaving.pop(0)()
        return dq, dk, dv

    def _ahead(self, plan: AllGatherPlan, k: Tensor, v: Tensor) -> Ahead[tuple[Tensor, Tensor]]:
        def gather(chunk: int) -> Arrival[tuple[Tensor, Tensor]]:
            _, heads = plan.heads(chunk)
            return plan.gathering.gather(chunk, k[:, heads], v[:, heads])

        # Rows that are packed by a kernel are packed before the kernel that they travel beside.
        pushes = isinstance(plan.gathering, PushedRows) and not plan.gathering.packs
        return Ahead(gather, len(plan.steps), pushes)
