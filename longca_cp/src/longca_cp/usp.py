"""usp: a ring of Ulysses groups. A group's ranks split heads, and keys and values go round between groups.

A group's ranks exchange heads as in `ulysses`, so that each has some heads of all of the group's tokens. With these it
takes part in a ring as in `ring_p2p`, and meets the same heads of the other groups. Groups are a mesh's last dim and so
inside a node, where all-to-all is fast. Rings cross nodes.

Heads that are pushed go in two chunks, each of which has a time round the ring. While one chunk is computed, the other
travels.

Source: USP (arXiv 2405.07719).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from longca.kernels.base import Kernel, torch_device
from longca.manifests import Layout, Problem, Transport
from longca_cp.exchange import axes_of
from longca_cp.head_exchange import head_exchange
from longca_cp.kv_ring import RingTransport, Round, shown_steps
from longca_cp.overlap import chunks_around_rings
from longca_cp.ring_p2p import RingPlan, ring_backward, ring_forward
from longca_cp.step_plans import Gradients, Saved, differentiate, plan_steps
from longca_cp.ulysses import ByHeads, HeadsPlan

__all__ = ["USP", "USPPlan"]


@dataclass(eq=False)
class USPPlan(RingPlan, HeadsPlan):
    """A plan for usp. The members of its ring are groups."""


class USP(ByHeads[USPPlan]):
    """Ulysses inside, a ring across."""

    def __init__(self, mesh: DeviceMesh, *, transport: Transport = Transport.AUTO) -> None:
        self._rank, (self._ring, self._group) = axes_of(mesh, ("ring", "ulysses"), transport)
        self.transports = tuple(axis.transport for axis in (self._ring, self._group))

    def plan(self, problem: Problem, layout: Layout, kernel: Kernel) -> USPPlan:
        """Plans this rank's steps on the ring."""
        chunks = chunks_around_rings(problem, self._group.size, self._ring.size, self._group.link is not None)
        steps = plan_steps(problem, layout, self._rank, kernel, chunks)
        groups = [range(first, first + self._group.size) for first in range(0, layout.world_size, self._group.size)]
        tokens = [sum(map(layout.shard_size, group)) for group in groups]
        shown = shown_steps(problem, layout)[self._group.index :: self._group.size]
        heads = len(range(*layout.steps[self._rank][0].heads_kv)) // chunks
        ring = RingTransport(self._ring, problem, heads, [Round(tokens, shown)], longest=max(tokens))
        exchange = head_exchange(self._group, layout, groups[self._ring.index], torch_device(problem.device))
        return USPPlan(problem, layout, self._rank, kernel, steps, exchange, chunks, ring)

    def _forward(self, plan: USPPlan, _chunk: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return ring_forward(self._ring, plan, q, k, v)

    def _backward(self, plan: USPPlan, _chunk: int, dout: Tensor, saved: Saved, into: Gradients) -> Gradients:
        if self._ring.size == 1:
            return differentiate(plan.kernel, plan.steps[0], dout, saved, into)
        return ring_backward(plan, dout, saved)
