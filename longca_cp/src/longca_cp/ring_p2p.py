"""ring_p2p: each rank computes its own queries, while keys and values go round the ring from rank to rank.

While a step is computed, the next step's keys arrive. Partial outputs merge by their log-sum-exps. In the backward the
gradients of keys and values go to the rank of their keys. The gradients of queries stay. All three are summed in
float32. `longca_cp.kv_ring` moves the keys and their gradients.

Sources: Ring Attention (arXiv 2310.01889), and zhuzilin/ring-flash-attention, which has it on FlashAttention.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from longca.kernels.base import Kernel, like_out
from longca.kernels.sinks import add_sinks
from longca.manifests import Layout, Problem, Transport
from longca.parallel.merge import Accumulator, Sum
from longca.parallel.strategy import Kept
from longca_cp.exchange import Axis, axes_of
from longca_cp.kv_ring import RingTransport, Round, shown_steps
from longca_cp.overlap import is_beside
from longca_cp.step_plans import Gradients, Saved, StepPlans, plan_steps

__all__ = ["RingP2P", "RingPlan", "ring_backward", "ring_forward"]


@dataclass(eq=False)
class RingPlan(StepPlans):
    """A plan for a ring.

    Attributes:
        ring: The way of keys and values round the ring.
    """

    ring: RingTransport


def ring_forward(axis: Axis, plan: RingPlan, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """out [T, Hq, Dv] and lse [Hq, T] of this rank's queries over all keys of the ring."""
    ring, total = plan.ring.keys(k, v), Accumulator(like_out(q, v))
    for step in plan.steps:
        with ring.sending():
            if step is not None:
                if not is_beside(step.problem, axis.by_nccl):
                    ring.settle()
                out, lse = total.slot()
                plan.kernel.forward(q, ring.k, ring.v, step, out=out, lse=lse)
        ring.wait()
    return total.result()


def ring_backward(plan: RingPlan, dout: Tensor, saved: Saved) -> Gradients:
    """dq, dk and dv of this rank's queries, keys and values."""
    q, k, v, out, lse = saved
    ring, dq = plan.ring.gradients(k, v), Sum(q)
    for step in plan.steps:
        with ring.sending():
            if step is not None:
                grads = {"dq": dq.slot(), "dk": ring.dk, "dv": ring.dv}
                plan.kernel.backward(dout, q, ring.k, ring.v, out, lse, step, **grads)
        ring.wait()
        ring.add(None if step is None else ring.part)
    return dq.result(), *ring.home()


class RingP2P:
    """Keys and values round a ring. See `longca.parallel.strategy.Strategy`."""

    def __init__(self, mesh: DeviceMesh, *, transport: Transport = Transport.AUTO) -> None:
        self._rank, (self._axis,) = axes_of(mesh, ("ring",), transport)
        self.transports = (self._axis.transport,)

    def plan(self, problem: Problem, layout: Layout, kernel: Kernel) -> RingPlan:
        """Plans this rank's steps."""
        steps = plan_steps(problem, layout, self._rank, kernel)
        tokens = [layout.shard_size(rank) for rank in range(self._axis.size)]
        rounds = [Round(tokens, shown_steps(problem, layout))]
        ring = RingTransport(self._axis, problem, problem.num_heads_kv, rounds, longest=max(tokens))
        return RingPlan(problem, layout, self._rank, kernel, steps, ring)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: RingPlan, *, kept: Kept = None, sinks: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of this rank's tokens. It keeps nothing."""
        results = ring_forward(self._axis, plan, q, k, v)
        return results if sinks is None else add_sinks(*results, sinks)

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: RingPlan,
        *,
        kept: Kept = None,
    ) -> Gradients:
        """Gradients of this rank's tokens."""
        return ring_backward(plan, dout, (q, k, v, out, lse))
