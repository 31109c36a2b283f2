"""loongtrain: heads split over ranks, and keys and values that go round two rings, one inside the other.

The ranks of a context-parallel group are dealt to windows. Within a window keys and values go round the inner ring.
From window to window they take one hop along the outer ring. This hop begins before the inner ring does, and is hidden
behind all of its steps. Heads are exchanged along the third axis, as in `usp`. In the backward a window's gradients
are summed along the inner ring, and these sums along the outer ring, both in float32. Each ring goes its own way
(`longca_cp.kv_ring`), so that the inner ring may push inside a host while the outer one crosses hosts.

The paper's two placements of ranks, head-first and context-first, are orders of the mesh's dims
(`longca_cp.layouts.loongtrain`).

Source: LoongTrain (arXiv 2406.18485, sections 3 and 4).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from longca.kernels.base import Kernel, like_out, torch_device
from longca.manifests import Layout, Problem, Transport
from longca.parallel.merge import Accumulator, Sum
from longca_cp.exchange import axes_of
from longca_cp.head_exchange import head_exchange
from longca_cp.kv_ring import RingTransport, Round, shown_steps
from longca_cp.overlap import chunks_around_rings, is_beside
from longca_cp.step_plans import Gradients, Saved, differentiate, plan_steps
from longca_cp.ulysses import ByHeads, HeadsPlan

__all__ = ["LoongTrain", "LoongTrainPlan"]


@dataclass(eq=False)
class LoongTrainPlan(HeadsPlan):
    """A plan for loongtrain.

    Attributes:
        outer: The way from window to window.
        inner: The way round each window.
    """

    outer: RingTransport
    inner: RingTransport


class LoongTrain(ByHeads[LoongTrainPlan]):
    """Head parallel and a double ring."""

    def __init__(self, mesh: DeviceMesh, *, transport: Transport = Transport.AUTO) -> None:
        self._rank, (self._outer, self._inner, self._heads) = axes_of(mesh, ("outer", "inner", "heads"), transport)
        self.transports = tuple(axis.transport for axis in (self._outer, self._inner, self._heads))

    def plan(self, problem: Problem, layout: Layout, kernel: Kernel) -> LoongTrainPlan:
        """Plans this rank's steps, window after window."""
        size, groups = self._heads.size, self._outer.size * self._inner.size
        chunks = chunks_around_rings(problem, size, groups, self._heads.link is not None)
        steps = plan_steps(problem, layout, self._rank, kernel, chunks)
        first = self._rank - self._rank % size
        exchange = head_exchange(self._heads, layout, range(first, first + size), torch_device(problem.device))
        outer, inner = self._ways(problem, layout, chunks)
        return LoongTrainPlan(problem, layout, self._rank, kernel, steps, exchange, chunks, outer, inner)

    def _ways(self, problem: Problem, layout: Layout, chunks: int) -> tuple[RingTransport, RingTransport]:
        """The ways of the outer ring and of the inner ring."""
        windows, places, size = self._outer.size, self._inner.size, self._heads.size
        held = [layout.shard_size(rank) for rank in range(layout.world_size)]
        tokens = np.array(held).reshape(windows, places, size).sum(2)
        shown = shown_steps(problem, layout).reshape(windows, places, size, windows, places)[:, :, self._heads.index]
        # A window's keys reach member i of the inner ring if member i + s computes with them in step s, for some s.
        turns = np.arange(places)
        reaches = np.any(shown[:, (self._inner.index + turns) % places, :, turns], axis=0, keepdims=True)[0]
        once = [Round(tokens[:, self._inner.index].tolist(), reaches)]
        sources = [self._outer.source(window) for window in range(windows)]
        rounds = [Round(tokens[at].tolist(), shown[self._outer.index, :, w]) for w, at in enumerate(sources)]
        heads, longest = len(range(*layout.steps[self._rank][0].heads_kv)) // chunks, int(tokens.max())
        outer = RingTransport(self._outer, problem, heads, once, longest=longest, wide=True)
        return outer, RingTransport(self._inner, problem, heads, rounds, longest=longest)

    def _forward(self, plan: LoongTrainPlan, _chunk: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        total, steps = Accumulator(like_out(q, v)), iter(plan.steps)
        outer = plan.outer.keys(k, v)
        for window in range(self._outer.size):
            outer.send()
            inner = plan.inner.keys(outer.k, outer.v, window)
            for _ in range(self._inner.size):
                with inner.sending():
                    if (step := next(steps)) is not None:
                        if not is_beside(step.problem, self._outer.by_nccl):
                            outer.settle()
                            inner.settle()
                        out, lse = total.slot()
                        plan.kernel.forward(q, inner.k, inner.v, step, out=out, lse=lse)
                inner.wait()
            outer.wait()
        return total.result()

    def _backward(self, plan: LoongTrainPlan, _chunk: int, dout: Tensor, saved: Saved, into: Gradients) -> Gradients:
        if len(plan.steps) == 1:
            return differentiate(plan.kernel, plan.steps[0], dout, saved, into)
        q, k, v, out, lse = saved
        dq, steps = Sum(q), iter(plan.steps)
        outer = plan.outer.gradients(k, v)
        for window in range(self._outer.size):
            outer.send()
            inner = plan.inner.gradients(outer.k, outer.v, window)
            for _ in range(self._inner.size):
                with inner.sending():
                    if (step := next(steps)) is not None:
                        grads = {"dq": dq.slot(), "dk": inner.dk, "dv": inner.dv}
                        plan.kernel.backward(dout, q, inner.k, inner.v, out, lse, step, **grads)
                inner.wait()
                inner.add(None if step is None else inner.part)
            outer.wait()
            outer.add(inner.home_sum())
        return dq.result(), *outer.home()
