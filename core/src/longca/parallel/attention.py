"""Attention under a context-parallel strategy: local shards in and out, differentiable.

The strategy plans all of a rank's steps at the first use of a mask. Later calls reuse the plan, in other layers too. A
call communicates, so all ranks of the mesh call with the same mask, names and shapes, in the same order. At the first
use of a mask, and now and then, they compare what they were asked (`longca.parallel.agreement`). A compiler sees a call
as a break in the graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from longca.errors import RequestError
from longca.kernels.ahead import take
from longca.kernels.base import in_given_dtypes
from longca.parallel.agreement import Ranks
from longca.parallel.calls import Known, calls_on
from longca.parallel.ready import ParallelCall, check_lengths, make_ready
from longca.parallel.strategy import Strategy, StrategyPlan

__all__ = ["parallel_attention"]


def parallel_attention(q: Tensor, k: Tensor, v: Tensor, call: ParallelCall) -> tuple[Tensor, Tensor]:
    """out [Tl, Hq, D] and lse [Hq, Tl] of this rank's tokens. See `longca.attention`.

    Args:
        q: This rank's queries: [Tl, Hq, D].
        k: This rank's keys: [Tl, Hkv, D].
        v: This rank's values: [Tl, Hkv, D].
        call: The call, apart from its tensors.

    Raises:
        RequestError: A mesh of other axes, or one without this process. A layout of another call, or a transport that
            the strategy lacks. A shard of a wrong length. At the first use of a plan also ranks that differ, or another
            rank that failed, and now and then ranks whose earlier calls differ. An earlier call of this rank that other
            ranks did not make.
        UnknownNameError: Nobody provides the strategy, its placement or the kernel.
        UnsupportedError: The strategy has no layout for this, or the kernel does not take every step of it.
        VerificationError: Only unverified offers cover the steps, and their verification failed.
    """
    problem, mesh, about, lengths = call.problem, call.mesh, call.about(), (q.shape[0], k.shape[0])
    calls = calls_on(mesh)

    def make() -> Known:
        ranks = Ranks.of(mesh)
        with ranks.told():
            ranks.agree(words := call.words())
            if (asked := take((problem.concrete_mask.key, about))) is not None:
                asked.taken()  # what it made is in the caches
            ready = make_ready(call, (ranks, lengths))
            assert ready is not None, "ranks that make it together make the strategy too"
            ranks.agree({})  # every rank has its plan
        return calls.known(ready, words)

    known = calls.latest.get(problem.mask, about, make)
    ready = known.ready
    try:
        check_lengths(ready.layout, ready.rank, lengths)
    except RequestError as error:
        Ranks.of(mesh).tell(error)  # the others may make the call
        raise
    if calls.ranks.note(known.number, known.words):
        calls.ranks.agree(known.words)
    training = problem.direction == "backward"
    result: tuple[Tensor, Tensor] = _Attention.apply(q, k, v, ready.strategy, ready.plan, training)  # type: ignore[no-untyped-call]
    if not q.is_cuda:
        calls.ranks.moved()
    return result


class _Attention(torch.autograd.Function):
    """A strategy's forward and backward as one differentiable function."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, strategy: Strategy, plan: StrategyPlan, training: bool
    ) -> tuple[Tensor, Tensor]:
        kept: list[Tensor] = []
        out, lse = strategy.forward(q, k, v, plan, kept=kept if training else None)
        ctx.strategy, ctx.plan, ctx.keeps = strategy, plan, bool(kept)
        ctx.save_for_backward(*(kept or (q, k, v, out, lse)))
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor, _dlse: Tensor) -> tuple[Tensor | None, ...]:
        saved, kept = ctx.saved_tensors, None
        if ctx.keeps:
            kept, saved = list(saved), (dout.new_empty(0),) * 5
        with in_given_dtypes(dout):
            grads = ctx.strategy.backward(dout.contiguous(), *saved, ctx.plan, kept=kept)
        return (*grads, None, None, None)
