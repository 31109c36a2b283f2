"""ulysses: each rank computes some heads of all tokens. One all-to-all takes q, k and v there, another brings out back.

A rank's heads go in two chunks if it has KV heads for both. While one chunk is computed, the other travels. The
backward needs q, k, v, out and lse by heads once more. It takes the tensors that the forward kept, or exchanges them
again. `longca_cp.layouts.split_heads` says which rank has which heads, with fewer KV heads than ranks too.

Source: DeepSpeed Ulysses (arXiv 2309.14509).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

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

__all__ = ["Ulysses", "UlyssesPlan", "backward_by_heads", "forward_by_heads"]


@dataclass(eq=False)
class UlyssesPlan(StepPlans):
    """A plan for ulysses. Its steps are chunks of this rank's heads."""

    exchange: HeadExchange


def forward_by_heads(
    exchange: HeadExchange,
    qkv: tuple[Tensor, Tensor, Tensor],
    computes: Sequence[Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]],
    kept: Kept,
    sinks: Sequence[Tensor | None],
) -> tuple[Tensor, Tensor]:
    """out [Tl, Hq, Dv] and lse [Hq, Tl] of this rank's tokens, computed by heads.

    Args:
        exchange: The ranks that share the heads.
        qkv: This rank's tokens of all heads.
        computes: A function for each chunk of heads, from q, k and v of the group's tokens to out and lse.
        kept: A list for q, k, v, out and lse of each chunk, or None.
        sinks: The sinks of each chunk of heads, or None.
    """
    chunks, q = len(computes), qkv[0]
    out, lse = new_out(q, qkv[2]), nothing_seen(q)
    exchange.begin(qkv, (out, by_token(lse)), chunks)
    ahead = Ahead(exchange.to_heads(qkv, chunks), chunks, exchange.pushes)
    leaving: list[Callable[[], None]] = []
    used: list[tuple[tuple[Tensor, ...], Tensor, Tensor]] = []
    for chunk, (compute, logits) in enumerate(zip(computes, sinks, strict=True)):
        with ahead.next() as mine:
            part_out, part_lse = compute(*mine)
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


def backward_by_heads(
    exchange: HeadExchange,
    dout: Tensor,
    saved: Saved,
    computes: Sequence[Callable[[Tensor, Saved, Gradients], Gradients]],
    kept: Kept,
    problem: Problem,
) -> Gradients:
    """Gradients of this rank's tokens. Gradients of a KV head of several ranks are summed over these ranks.

    Args:
        exchange: The ranks that share the heads.
        dout: [Tl, Hq, Dv].
        saved: q, k, v, out and lse of this rank's tokens. They are not read if `kept` has tensors.
        computes: A function for each chunk of heads, from dout, saved tensors and buffers to dq, dk and dv. The
            gradients may be in the buffers or elsewhere.
        kept: The tensors that the forward kept, or None.
        problem: The problem of all ranks together.
    """
    chunks, again = len(computes), () if kept else (*saved[:4], by_token(saved[4]))
    (dim, dim_v), heads_kv = problem.dims, problem.num_heads_kv
    shapes = (problem.heads_q, dim), (heads_kv, dim), (heads_kv, dim_v)
    dq, dk, dv = (dout.new_empty((len(dout), *shape)) for shape in shapes)
    exchange.begin((*again, dout), (dq, dk, dv), chunks)
    kept = kept or _exchange_again(exchange, again, chunks)
    ahead = Ahead(exchange.to_heads((dout,), chunks), chunks, exchange.pushes)
    leaving: list[Callable[[], None]] = []
    for chunk, compute in enumerate(computes):
        with ahead.next() as (mine,):
            q, k, v, out, lse = kept[5 * chunk : 5 * chunk + 5]
            joined, into = beside(q, k, v)
            _fill(into, compute(mine, (q, k, v, out, lse), into))
        leaving.append(exchange.to_tokens([(joined, (dq, dk, dv))], chunk, chunks))
    _settle(leaving)
    exchange.end()
    return dq, dk, dv


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


class Ulysses:
    """All-to-all over heads. See `longca.parallel.strategy.Strategy`."""

    def __init__(self, mesh: DeviceMesh, *, transport: Transport = Transport.AUTO) -> None:
        self._rank, (self._axis,) = axes_of(mesh, ("ulysses",), transport)
        self.transports = (self._axis.transport,)

    def plan(self, problem: Problem, layout: Layout, kernel: Kernel) -> UlyssesPlan:
        """Plans this rank's chunks of heads."""
        count = ulysses_chunks(problem, self._axis.size, self._axis.by_nccl, self._axis.link is not None)
        chunks = plan_chunks(problem, layout, self._rank, kernel, count)
        exchange = head_exchange(self._axis, layout, range(self._axis.size), torch_device(problem.device))
        return UlyssesPlan(problem, layout, self._rank, kernel, chunks, exchange)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: UlyssesPlan, *, kept: Kept = None, sinks: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of this rank's tokens."""
        computes = [partial(attend, plan.kernel, step) for step in plan.steps]
        return forward_by_heads(plan.exchange, (q, k, v), computes, kept, plan.sinks_of(sinks, len(computes)))

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: UlyssesPlan,
        *,
        kept: Kept = None,
    ) -> Gradients:
        """Gradients of this rank's tokens."""
        saved = q, k, v, out, lse
        computes = [partial(differentiate, plan.kernel, step) for step in plan.steps]
        return backward_by_heads(plan.exchange, dout, saved, computes, kept, plan.problem)
