"""ulysses: each rank computes some heads of all tokens. One all-to-all takes q, k and v there, another brings out back.

A rank's heads go in two chunks if it has KV heads for both. While one chunk is computed, the other travels. The
backward needs q, k, v, out and lse by heads once more. It takes the tensors that the forward kept, or exchanges them
again. `longca_cp.layouts.split_heads` says which rank has which heads, with fewer KV heads than ranks too.

Source: DeepSpeed Ulysses (arXiv 2309.14509).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from longca.kernels.base import Kernel, fill, new_out, nothing_seen, torch_device
from longca.kernels.sinks import add_sinks
from longca.manifests import Layout, Problem, Transport
from longca.parallel.strategy import Kept
from longca_cp.exchange import axes_of
from longca_cp.head_exchange import HeadExchange, beside, by_token, head_exchange
from longca_cp.overlap import Ahead, ulysses_chunks
from longca_cp.step_plans import Gradients, Saved, StepPlans, attend, differentiate, plan_chunks

__all__ = ["ByHeads", "HeadsPlan", "Ulysses"]


@dataclass(eq=False)
class HeadsPlan(StepPlans):
    """A plan with an exchange of heads.

    Attributes:
        exchange: The exchange within a group of ranks.
        chunks: Number of chunks of this rank's heads.
    """

    exchange: HeadExchange
    chunks: int


AnyPlan = TypeVar("AnyPlan", bound=HeadsPlan)


class ByHeads(ABC, Generic[AnyPlan]):
    """Some heads of a group's tokens between two exchanges of heads. See `longca.parallel.strategy.Strategy`."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: AnyPlan, *, kept: Kept = None, sinks: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of this rank's tokens. It keeps q, k, v, out and lse of its heads, chunk by chunk."""
        exchange, chunks, qkv = plan.exchange, plan.chunks, (q, k, v)
        out, lse = new_out(q, v), nothing_seen(q)
        exchange.begin(qkv, (out, by_token(lse)), chunks)
        ahead = Ahead(exchange.to_heads(qkv, chunks), chunks, exchange.pushes)
        leaving: list[Callable[[], None]] = []
        used: list[tuple[tuple[Tensor, ...], Tensor, Tensor]] = []
        for chunk, logits in enumerate(plan.sinks_of(sinks, chunks)):
            with ahead.next() as mine:
                part_out, part_lse = self._forward(plan, chunk, *mine)
                if logits is not None:
                    part_out, part_lse = add_sinks(part_out.contiguous(), part_lse.contiguous(), logits)
            parts = (part_out, (out,)), (by_token(part_lse), (by_token(lse),))
            leaving.append(exchange.to_tokens(parts, chunk, chunks))
            if kept is not None:
                used.append((mine, part_out, part_lse))
        if kept is not None:
            for mine, part_out, part_lse in used:
                kept += (*exchange.outliving(mine), part_out, part_lse)
        _settle(leaving)
        exchange.end()
        return out, lse

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: AnyPlan,
        *,
        kept: Kept = None,
    ) -> Gradients:
        """Gradients of this rank's tokens. Gradients of a KV head of several ranks are summed over these ranks."""
        exchange, chunks, again = plan.exchange, plan.chunks, () if kept else (q, k, v, out, by_token(lse))
        (dim, dim_v), heads_kv = plan.problem.dims, plan.problem.num_heads_kv
        shapes = (plan.problem.heads_q, dim), (heads_kv, dim), (heads_kv, dim_v)
        dq, dk, dv = (dout.new_empty((len(dout), *shape)) for shape in shapes)
        exchange.begin((*again, dout), (dq, dk, dv), chunks)
        kept = kept or _exchange_again(exchange, again, chunks)
        ahead = Ahead(exchange.to_heads((dout,), chunks), chunks, exchange.pushes)
        leaving: list[Callable[[], None]] = []
        for chunk in range(chunks):
            with ahead.next() as (mine,):
                q, k, v, out, lse = kept[5 * chunk : 5 * chunk + 5]
                joined, into = beside(q, k, v)
                _fill(into, self._backward(plan, chunk, mine, (q, k, v, out, lse), into))
            leaving.append(exchange.to_tokens([(joined, (dq, dk, dv))], chunk, chunks))
        _settle(leaving)
        exchange.end()
        return dq, dk, dv

    @abstractmethod
    def _forward(self, plan: AnyPlan, chunk: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """out and lse of a chunk of this rank's heads, for the group's tokens."""

    @abstractmethod
    def _backward(self, plan: AnyPlan, chunk: int, dout: Tensor, saved: Saved, into: Gradients) -> Gradients:
        """dq, dk and dv of a chunk of heads, in the buffers or elsewhere."""


def _fill(buffers: Gradients, gradients: Gradients) -> None:
    """Puts gradients into buffers, and keeps none of them while the next chunk is computed."""
    for buffer, gradient in zip(buffers, gradients, strict=True):
        fill(buffer, gradient)


def _settle(leaving: list[Callable[[], None]]) -> None:
    """Waits for results that are on their way, and forgets them."""
    while leaving:
        leaving.pop(0)()


def _exchange_again(exchange: HeadExchange, saved: Sequence[Tensor], chunks: int) -> list[Tensor]:
    """The tensors that the forward would have kept, from q, k, v, out and the log-sum-exp by tokens."""
    *tensors, lse = saved
    kept: list[Tensor] = []
    lses, others = exchange.to_heads((lse,), chunks), exchange.to_heads(tensors, chunks)
    for chunk in range(chunks):
        (part_lse,) = lses(chunk).wait()
        kept += others(chunk).wait()
        kept.append(part_lse[..., 0].T.contiguous())
    return kept


class Ulysses(ByHeads[HeadsPlan]):
    """All-to-all over heads. The steps of a plan are chunks of this rank's heads."""

    def __init__(self, mesh: DeviceMesh, *, transport: Transport = Transport.AUTO) -> None:
        self._rank, (self._axis,) = axes_of(mesh, ("ulysses",), transport)
        self.transports = (self._axis.transport,)

    def plan(self, problem: Problem, layout: Layout, kernel: Kernel) -> HeadsPlan:
        """Plans this rank's chunks of heads."""
        count = ulysses_chunks(problem, self._axis.size, self._axis.by_nccl, self._axis.link is not None)
        chunks = plan_chunks(problem, layout, self._rank, kernel, count)
        exchange = head_exchange(self._axis, layout, range(self._axis.size), torch_device(problem.device))
        return HeadsPlan(problem, layout, self._rank, kernel, chunks, exchange, count)

    def _forward(self, plan: HeadsPlan, chunk: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return attend(plan.kernel, plan.steps[chunk], q, k, v)

    def _backward(self, plan: HeadsPlan, chunk: int, dout: Tensor, saved: Saved, into: Gradients) -> Gradients:
        return differentiate(plan.kernel, plan.steps[chunk], dout, saved, into)
