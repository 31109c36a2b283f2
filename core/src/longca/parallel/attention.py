"""Attention under a context-parallel strategy: local shards in and out, differentiable.

The strategy plans all of a rank's steps at the first use of a mask. Later calls reuse the plan, in other layers too. A
call communicates, so all ranks of the mesh call with the same mask, names and shapes, in the same order. At the first
use of a mask they compare what they were asked (`longca.parallel.agreement`). The side thread of `longca.prefetch`
makes the parts of a call that need no other rank. A compiler sees a call as a break in the graph.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import _C, Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack
from torch.utils.checkpoint import _CachedTorchDispatchMode, _CachingTorchDispatchMode

from longca import plugins
from longca.adviser import AUTO, adviser, log
from longca.errors import RequestError
from longca.kernels.ahead import NotAheadError, Prefetch, ask, take
from longca.kernels.base import in_given_dtypes, on_device_of
from longca.kernels.refusals import check_taken
from longca.kernels.sinks import sinks_gradient
from longca.kernels.unverified import check_unverified, choose_checked
from longca.manifests import Layout, Problem, Transport, installed_version
from longca.masks import Mask
from longca.parallel.agreement import Ranks
from longca.parallel.layouts import check_layout, placed
from longca.parallel.meshes import axis_sizes, groups_of, is_first, rank_in
from longca.parallel.strategy import Strategy, StrategyPlan, constructed, transport_of
from longca.plan_cache import PlanCache

__all__ = ["ParallelCall", "parallel_attention", "prefetch_parallel", "prefetch_placement"]


class ParallelCall(NamedTuple):
    """A call under a strategy, apart from its tensors.

    Attributes:
        problem: The problem of all ranks together.
        strategy: Name of the strategy, or `auto`.
        mesh: A device mesh with dims named as the strategy's axes.
        kernel: Name of the kernel or pair, or `auto`.
        placement: Name of the placement, `auto`, or a layout of the strategy.
        transport: The way to move tensors, or `auto`.
    """

    problem: Problem
    strategy: str
    mesh: DeviceMesh
    kernel: str
    placement: str | Layout
    transport: Transport | str

    def about(self) -> tuple[Hashable, ...]:
        """Everything that the call's plan depends on, apart from the mask."""
        problem, strategy, mesh, kernel, placement, transport = self
        # A layout counts by its identity, because comparing long ones takes time. The entry holds the layout.
        where = id(placement) if isinstance(placement, Layout) else placement
        return plugins.registry(), problem.settings, strategy, mesh, groups_of(mesh), kernel, where, transport

    def words(self) -> dict[str, str]:
        """The parts of the call that are the same on all ranks, in words that ranks compare."""
        problem, placement = self.problem, self.placement
        mask = problem.concrete_mask
        return {
            "mask": f"{mask.label} ({mask.fingerprint})",
            "heads": f"{problem.heads_q}:{problem.num_heads_kv}",
            "head_dim": problem.dims_text,
            "dtype": problem.dtype,
            "device": problem.device.kind,
            "direction": str(problem.direction),
            "softmax_scale": str(problem.softmax_scale),
            "softcap": str(problem.softcap),
            "deterministic": str(problem.deterministic),
            "allow_unverified": str(problem.allow_unverified),
            "sinks": str(problem.sinks),
            "strategy": self.strategy,
            "kernel": self.kernel,
            "placement": placement.words if isinstance(placement, Layout) else str(placement),
            "transport": str(self.transport),
            "longca-core": installed_version("longca-core") or "",
        }


@dataclass(frozen=True, eq=False)
class _Ready:
    """A strategy, its plan and layout, and this process's rank in the layout."""

    strategy: Strategy
    plan: StrategyPlan
    layout: Layout
    rank: int


#: The latest meshes with their ranks and calls. A rank may be in several. With a cache for each mesh, all of its ranks
#: drop the same calls.
_CALLS: PlanCache[tuple[Ranks, PlanCache[_Ready]]] = PlanCache()
#: The strategies of the latest meshes. Ranks make them together.
_STRATEGIES: PlanCache[Strategy] = PlanCache()
#: The latest plans. A rank makes them alone, so the side thread of `longca.prefetch` makes them too.
_PLANNED: PlanCache[_Ready] = PlanCache()


def _calls_on(mesh: DeviceMesh) -> tuple[Ranks, PlanCache[_Ready]]:
    return _CALLS.get(None, (mesh, groups_of(mesh)), lambda: (Ranks.of(mesh), PlanCache()))


def parallel_attention(
    q: Tensor, k: Tensor, v: Tensor, call: ParallelCall, sinks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """out [Tl, Hq, D] and lse [Hq, Tl] of this rank's q [Tl, Hq, D], k and v [Tl, Hkv, D]. See `longca.attention`.

    Sinks are [Hq] on all ranks.

    Raises:
        RequestError: A mesh of other axes, or one without this process. A layout of another call, or a transport that
            the strategy lacks. A shard of a wrong length. At the first use of a plan also ranks that differ, or another
            rank that failed.
        UnknownNameError: Nobody provides the strategy, its placement or the kernel.
        UnsupportedError: The strategy has no layout for this, or the kernel does not take every step of it.
        VerificationError: Only unverified offers cover the steps, and their verification failed.
    """
    problem, about, lengths = call.problem, call.about(), (q.shape[0], k.shape[0])
    ranks, calls = _calls_on(call.mesh)

    def make() -> _Ready:
        # A checkpoint counts operators, and finds the plan when it computes again.
        with _disable_current_modes(), ranks.sharing_errors():
            ranks.agree(call.words())
            if (asked := take((problem.concrete_mask.key, about))) is not None:
                asked.taken()  # what it made is in the caches
            made = _make_ready(call, (ranks, lengths))
            assert made is not None, "ranks that make it together make the strategy too"
            ranks.agree({})  # every rank has its plan
        return made

    ready = calls.get(problem.mask, about, make)
    try:
        _check_lengths(ready.layout, ready.rank, lengths)
    except RequestError as error:
        ranks.share(error)  # the others may make the call
        raise
    ranks.note(problem.concrete_mask.fingerprint)
    training = problem.direction == "backward"
    result: tuple[Tensor, Tensor] = _Attention.apply(q, k, v, sinks, ready, training)  # type: ignore[no-untyped-call]
    return result


def _make_ready(call: ParallelCall, together: tuple[Ranks, tuple[int, int]] | None = None) -> _Ready | None:
    """Makes a call ready, together with other ranks, given them and this rank's tokens of q and k, or alone.

    A rank that is alone starts no collective, and returns None if the strategy is not there.
    """
    problem, strategy, mesh, kernel, placement, transport = call
    registry, alone = plugins.registry(), together is None
    if isinstance(placement, Layout):
        layout, strategy = placement, _named(strategy, placement)
        check_layout(layout, problem, strategy, axis_sizes(mesh, registry.strategy(strategy).axes))
    else:
        (layout,) = placed(problem, strategy, mesh, kernel, placement, alone=alone)
        strategy = _named(strategy, layout)
    if kernel == AUTO:
        choice = choose_checked(
            registry, problem, lambda asked: adviser().choose_kernel(registry, asked, layout), layout
        )
        if is_first(mesh):
            log(choice)
        kernel = choice.kernel
    else:
        verdict = registry.resolve(kernel, problem, layout)
        check_taken(registry, verdict, problem, layout)
        check_unverified(registry, verdict, problem)
    rank = rank_in(mesh, registry.strategy(strategy).axes)
    if together is not None:
        ranks, lengths = together
        _check_lengths(layout, rank, lengths)
        provider = registry.strategy_provider(strategy)
        ranks.agree({"layout": layout.words, provider.distribution: provider.version})
    made = _strategy_on(strategy, mesh, transport, alone)
    if made is None:
        return None

    def plan() -> _Ready:
        planned = made.plan(problem, layout, registry.load(kernel))
        if alone and mesh.device_type == "cuda":
            torch.cuda.current_stream().synchronize()  # another thread may find the plan at once
        return _Ready(made, planned, layout, rank)

    # The entry holds the strategy and the layout, so their numbers stand for them.
    return _PLANNED.get(problem.mask, (id(made), id(layout), problem.settings, kernel), plan)


def _named(strategy: str, layout: Layout) -> str:
    """The strategy's name. `auto` takes the layout's strategy."""
    if strategy != AUTO:
        return strategy
    if layout.strategy is None:
        raise RequestError(
            "strategy='auto' takes the strategy of the layout, and this one was made by hand; name the strategy"
        )
    return layout.strategy


def _strategy_on(name: str, mesh: DeviceMesh, transport: Transport | str, alone: bool = False) -> Strategy | None:
    """A strategy on a mesh, constructed at its first use by all ranks together. A rank that is alone may get None."""
    registry = plugins.registry()
    manifest = registry.strategy(name)
    moved_by = transport_of(transport, manifest)
    about = registry, name, mesh, groups_of(mesh), moved_by
    if alone:
        return _STRATEGIES.find(None, about)
    return _STRATEGIES.get(None, about, lambda: constructed(registry.load_strategy(name), manifest, mesh, moved_by))


def _check_lengths(layout: Layout, rank: int, lengths: tuple[int, int]) -> None:
    """Checks that this rank's q and k have the tokens that the layout gives it."""
    if lengths != (tokens := layout.shard_size(rank), tokens):
        raise RequestError(
            f"q has {lengths[0]} tokens and k {lengths[1]}, but rank {rank} of {layout.world_size} holds {tokens} of "
            f"{layout.num_tokens} here; shard with longca.layout, and give the same placement"
        )


#: What is ready, by its number in the operator's arguments.
_READY: WeakValueDictionary[int, _Ready] = WeakValueDictionary()


def _forward(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, number: int, training: bool
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """out [Tl, Hq, Dv] and lse [Hq, Tl], and the tensors that the strategy keeps for its backward."""
    ready, kept = _READY[number], list[Tensor]()
    given = {} if sinks is None else {"sinks": sinks}
    out, lse = ready.strategy.forward(q, k, v, ready.plan, kept=kept if training else None, **given)
    return out, lse, kept


torch.library.impl("longca::parallel_attention", "CompositeExplicitAutograd", _forward)


def _is_checkpointed() -> bool:
    """Whether a selective checkpoint watches. Other modes see what a strategy does, such as its collectives."""
    watching = _get_current_dispatch_mode_stack() if _C._len_torch_dispatch_stack() else ()
    return any(isinstance(mode, (_CachingTorchDispatchMode, _CachedTorchDispatchMode)) for mode in watching)


class _Attention(torch.autograd.Function):
    """A strategy's forward and backward as one differentiable function. The gradient of sinks is by its own queries."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, ready: _Ready, training: bool
    ) -> tuple[Tensor, Tensor]:
        _READY[id(ready)] = ready
        operator = torch.ops.longca.parallel_attention if _is_checkpointed() else _forward
        out, lse, kept = operator(q, k, v, sinks, id(ready), training)
        ctx.ready, ctx.keeps = ready, bool(kept)
        results = (out, lse) if ctx.needs_input_grad[3] or not kept else (None, None)
        ctx.save_for_backward(sinks, *(kept or (q, k, v)), *results)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor, _dlse: Tensor) -> tuple[Tensor | None, ...]:
        (sinks, *saved), kept, dsinks = ctx.saved_tensors, None, None
        dout = dout.contiguous()
        with in_given_dtypes(dout):
            if ctx.needs_input_grad[3]:
                out, lse = (x.contiguous() for x in saved[-2:])
                dsinks = sinks_gradient(dout, out, lse, sinks)
            if ctx.keeps:
                kept, saved = saved[:-2], [dout.new_empty(0)] * 5
            grads = ctx.ready.strategy.backward(dout, *saved, ctx.ready.plan, kept=kept)
        return (*grads, dsinks, None, None)


def prefetch_parallel(like: Tensor, call: ParallelCall) -> Prefetch:
    """Asks the side thread for everything of a later call that this rank makes without the others.

    The ranks' agreement on `auto` is left to the call. A named strategy is constructed here, because its constructor
    may start collectives. The call plans too, if `auto` takes a strategy that is not there yet, or if the strategy's
    plan comes to a collective. The layout, the choices and the cut of the mask are ready in any case. `like` is a
    tensor of the call's dtype and device.
    """
    mask, about = call.problem.mask, call.about()
    if call.strategy != AUTO:
        _strategy_on(call.strategy, call.mesh, call.transport)

    def make() -> _Ready | None:
        if (found := _calls_on(call.mesh)[1].find(mask, about)) is not None:
            return found
        call.words()  # the mask keeps its digest for the call
        with on_device_of(like), in_given_dtypes(like), suppress(NotAheadError):
            return _make_ready(call)
        return None

    return ask((call.problem.concrete_mask.key, about), make, like.device)


def prefetch_placement(like: Tensor, weighed: Sequence[tuple[Mask, float]], call: ParallelCall) -> Prefetch:
    """Asks the side thread for the placement that several masks share. `longca.layout` then finds it.

    The ranks' agreement on it is left to `longca.layout`. `like` is a tensor on the device, `weighed` are the masks
    with their weights, and `call` has the first mask.
    """
    problem, strategy, mesh, kernel, placement, _ = call
    if isinstance(placement, Layout):
        raise RequestError("a layout places one mask, and several were given; give a placement's name, or auto")

    def make() -> None:
        placed(problem, strategy, mesh, kernel, placement, shared=weighed, alone=True)

    return ask(object(), make, like.device)  # the caches know what was made before
