"""Attention under a context-parallel strategy: local shards in and out, differentiable.

The strategy plans all of a rank's steps at the first use of a mask. Later calls reuse the plan, in other layers too. A
call communicates, so all ranks of the mesh call with the same mask, names and shapes, in the same order. At the first
use of a mask, and now and then, they compare what they were asked (`longca.parallel.agreement`). A compiler sees a call
as a break in the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh

from longca.adviser import AUTO
from longca.errors import RequestError
from longca.kernels.ahead import NotAheadError, Prefetch, ask, take
from longca.kernels.base import in_given_dtypes, on_device_of
from longca.manifests import Layout
from longca.masks import Mask
from longca.parallel.agreement import Ranks
from longca.parallel.layouts import placed_together
from longca.parallel.meshes import groups_of
from longca.parallel.ready import ParallelCall, Ready, check_lengths, make_ready, strategy_on
from longca.parallel.strategy import Strategy, StrategyPlan
from longca.plan_cache import PlanCache

__all__ = ["parallel_attention", "prefetch_parallel", "prefetch_placement"]


class _KnownCall(NamedTuple):
    """A call that is ready, its number among the new calls on its mesh, and the call in words that ranks compare."""

    ready: Ready
    number: int
    words: Mapping[str, str]


class _Calls:
    """The calls on a mesh."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.ranks = Ranks.of(mesh)
        self.latest: PlanCache[_KnownCall] = PlanCache(64)
        self.numbers = count()


#: The calls on the latest meshes. A rank may be in several. With calls of its own for each mesh, all of its ranks drop
#: the same ones.
_CALLS: PlanCache[_Calls] = PlanCache(64)


def _calls_on(mesh: DeviceMesh) -> _Calls:
    return _CALLS.get(None, (mesh, groups_of(mesh)), lambda: _Calls(mesh))


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
            rank that failed, and now and then ranks whose earlier calls differ.
        UnknownNameError: Nobody provides the strategy, its placement or the kernel.
        UnsupportedError: The strategy has no layout for this, or the kernel does not take every step of it.
        VerificationError: Only unverified offers cover the steps, and their verification failed.
    """
    problem, mesh, about, lengths = call.problem, call.mesh, call.about(), (q.shape[0], k.shape[0])
    calls = _calls_on(mesh)
    ranks = calls.ranks

    def make() -> _KnownCall:
        with ranks.sharing_errors():
            ranks.agree(words := call.words())
            if (asked := take((problem.concrete_mask.key, about))) is not None:
                asked.taken()  # what it made is in the caches
            ready = make_ready(call, (ranks, lengths))
            assert ready is not None, "ranks that make it together make the strategy too"
            ranks.agree({})  # every rank has its plan
        return _KnownCall(ready, next(calls.numbers), words)

    known = calls.latest.get(problem.mask, about, make)
    ready = known.ready
    try:
        check_lengths(ready.layout, ready.rank, lengths)
    except RequestError as error:
        ranks.share(error)  # the others may make the call
        raise
    if ranks.note(known.number):
        ranks.agree(known.words)
    training = problem.direction == "backward"
    result: tuple[Tensor, Tensor] = _Attention.apply(q, k, v, ready.strategy, ready.plan, training)  # type: ignore[no-untyped-call]
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


def prefetch_parallel(like: Tensor, call: ParallelCall) -> Prefetch:
    """Asks the side thread for everything of a later call that this rank makes without the others.

    The ranks' agreement on `auto` is left to the call. A named strategy is constructed here, because its constructor
    may start collectives. The call plans too, if `auto` takes a strategy that is not there yet, or if the strategy's
    plan comes to a collective. The layout, the choices and the cut of the mask are ready in any case.

    Args:
        like: A tensor of the call's dtype and device.
        call: The later call.
    """
    mask, about = call.problem.mask, call.about()
    if call.strategy != AUTO:
        strategy_on(call.strategy, call.mesh, call.transport)

    def make() -> Ready | None:
        if (found := _calls_on(call.mesh).latest.find(mask, about)) is not None:
            return found.ready
        call.words()  # the mask keeps its digest for the call
        with on_device_of(like), in_given_dtypes(like), suppress(NotAheadError):
            return make_ready(call)
        return None

    return ask((call.problem.concrete_mask.key, about), make, like.device)


def prefetch_placement(like: Tensor, weighed: Sequence[tuple[Mask, float]], call: ParallelCall) -> Prefetch:
    """Asks the side thread for the placement that several masks share. `longca.layout` then finds it.

    The ranks' agreement on it is left to `longca.layout`.

    Args:
        like: A tensor on the device.
        weighed: The masks with their weights.
        call: A call with the first mask.

    Raises:
        RequestError: The placement is a layout, which places one mask.
    """
    problem, strategy, mesh, kernel, placement, _ = call
    if isinstance(placement, Layout):
        raise RequestError("a layout places one mask, and several were given; give a placement's name, or auto")

    def make() -> None:
        placed_together(problem, weighed, strategy, mesh, kernel, placement, alone=True)

    return ask(object(), make, like.device)  # the caches know what was made before
