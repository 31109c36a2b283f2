"""Attention under a context-parallel strategy: local shards in and out, differentiable.

The strategy plans all of a rank's steps at the first use of a mask. Later calls reuse the plan, in other layers too. A
call communicates, so all ranks of the mesh call with the same mask, names and shapes, in the same order. At the first
use of a mask they compare what they were asked (`longca.parallel.agreement`). A compiler sees a call as a break in the
graph.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh

from longca import plugins
from longca.distributions import find_core
from longca.errors import RequestError
from longca.kernels.ahead import NotAheadError, Prefetch, ask, take
from longca.kernels.base import in_given_dtypes, on_device_of
from longca.kernels.verify_first import choose_first, verify_first
from longca.manifests import Layout, Problem
from longca.masks import Mask
from longca.parallel.agreement import Ranks
from longca.parallel.layouts import check_layout, layout_words, placed, placed_together
from longca.parallel.meshes import axis_sizes, groups_of, rank_in
from longca.parallel.strategy import Strategy, StrategyPlan
from longca.parallel.transport import Transport, constructed, transport_of
from longca.plan_cache import PlanCache
from longca_advice.auto_layout import AUTO, choose_kernel

__all__ = ["parallel_attention", "place_ahead", "plan_ahead", "strategy_on"]


class _Ready(NamedTuple):
    """A strategy, its plan and layout, and this process's rank in the layout."""

    strategy: Strategy
    plan: StrategyPlan
    layout: Layout
    rank: int


#: The latest calls of each mesh, and the strategies of the latest meshes. Ranks make them together. A rank may be in
#: other meshes too. With a cache for each mesh, all of its ranks drop the same calls.
_READY: PlanCache[PlanCache[_Ready]] = PlanCache(64)
_STRATEGIES: PlanCache[Strategy] = PlanCache(64)
#: The latest plans. A rank makes them alone, so the side thread of `longca.prefetch` makes them too.
_PLANNED: PlanCache[_Ready] = PlanCache(64)
#: The words of the latest layouts.
_SAID: PlanCache[tuple[Layout, str]] = PlanCache(16)


def parallel_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    problem: Problem,
    strategy: str,
    mesh: DeviceMesh,
    kernel: str,
    placement: Any,
    transport: Transport | str = Transport.AUTO,
) -> tuple[Tensor, Tensor]:
    """out [Tl, Hq, D] and lse [Hq, Tl] of this rank's tokens. See `longca.attention`.

    Args:
        q: This rank's queries: [Tl, Hq, D].
        k: This rank's keys: [Tl, Hkv, D].
        v: This rank's values: [Tl, Hkv, D].
        problem: The problem of all ranks together.
        strategy: Name of the strategy, or `auto`.
        mesh: A device mesh with dims named as the strategy's axes.
        kernel: Name of the kernel or pair, or `auto`.
        placement: Name of the placement, `auto`, or a layout of the strategy.
        transport: The way to move tensors, or `auto`.

    Raises:
        RequestError: A mesh of other axes, or one without this process. A layout of another call, or a transport that
            the strategy lacks. At the first use of a plan also ranks that differ, or another rank that failed. A shard
            of a wrong length, which at later calls its rank alone finds.
        UnknownNameError: Nobody provides the strategy, its placement or the kernel.
        UnsupportedError: The strategy has no layout for this, or the kernel does not take every step of it.
        VerificationError: Only unverified offers cover the steps, and their verification failed.
    """
    about, lengths = _about(problem, strategy, mesh, kernel, placement, transport), (q.shape[0], k.shape[0])

    def make() -> _Ready:
        ranks = Ranks.of(mesh)
        with ranks.told():
            ranks.agree(_words(problem, strategy, kernel, placement, transport))
            if (asked := take((problem.concrete_mask.key, about))) is not None:
                asked.taken()  # what it made is in the caches
            together = ranks, lengths
            ready = _make_ready(problem, strategy, mesh, kernel, placement, transport, together)
            assert ready is not None, "ranks that make it together make the strategy too"
            ranks.agree({})  # every rank has its plan
        return ready

    ready = _ready_of(mesh).get(problem.mask, about, make)
    _check_lengths(ready.layout, ready.rank, lengths)
    training = problem.direction == "backward"
    return _Attention.apply(q, k, v, ready.strategy, ready.plan, training)  # type: ignore[no-untyped-call]


def plan_ahead(
    like: Tensor,
    problem: Problem,
    strategy: str,
    mesh: DeviceMesh,
    kernel: str,
    placement: str | Layout,
    transport: Transport | str,
) -> Prefetch:
    """Asks the side thread for everything of a later call that this rank makes alone.

    The ranks' agreement on `auto` is left to the call. A named strategy is constructed here, because its constructor
    may start collectives. The call plans too, if `auto` takes a strategy that is not there yet, or if the strategy's
    plan comes to a collective. The layout, the choices and the cut of the mask are ready in any case.

    Args:
        like: A tensor of the call's dtype and device.
        problem: As in `parallel_attention`, like the other arguments.
        strategy: Name of the strategy, or `auto`.
        mesh: The device mesh.
        kernel: Name of the kernel or pair, or `auto`.
        placement: Name of the placement, `auto`, or a layout.
        transport: The way to move tensors, or `auto`.
    """
    about = _about(problem, strategy, mesh, kernel, placement, transport)
    if strategy != AUTO:
        strategy_on(strategy, mesh, transport)

    def make() -> _Ready | None:
        if (found := _ready_of(mesh).find(problem.mask, about)) is not None:
            return found
        _words(problem, strategy, kernel, placement, transport)  # the mask keeps its digest for the call
        with on_device_of(like), in_given_dtypes(like), suppress(NotAheadError):
            return _make_ready(problem, strategy, mesh, kernel, placement, transport)
        return None

    return ask((problem.concrete_mask.key, about), make, like.device)


def place_ahead(
    like: Tensor,
    problem: Problem,
    weighed: Sequence[tuple[Mask, float]],
    strategy: str,
    mesh: DeviceMesh,
    kernel: str,
    placement: str | Layout,
) -> Prefetch:
    """Asks the side thread for the placement that several masks share. `longca.layout` then finds it.

    The ranks' agreement on it is left to `longca.layout`.

    Args:
        like: A tensor on the device.
        problem: The problem of the first mask.
        weighed: The masks with their weights.
        strategy: Name of the strategy, or `auto`.
        mesh: The device mesh.
        kernel: Name of the kernel or pair, or `auto`.
        placement: Name of the placement, or `auto`.

    Raises:
        RequestError: The placement is a layout, which places one mask.
    """
    if isinstance(placement, Layout):
        raise RequestError("a layout places one mask, and several were given; give a placement's name, or auto")

    def make() -> None:
        placed_together(problem, weighed, strategy, mesh, kernel, placement, alone=True)

    return ask(object(), make, like.device)  # the caches know what was made before


def _ready_of(mesh: DeviceMesh) -> PlanCache[_Ready]:
    """The latest calls on a mesh."""
    return _READY.get(None, (mesh, groups_of(mesh)), lambda: PlanCache(64))


def _words(
    problem: Problem, strategy: str, kernel: str, placement: str | Layout, transport: Transport | str
) -> dict[str, str]:
    """The parts of a call that are the same on all ranks, in words that ranks compare."""
    mask = problem.concrete_mask
    return {
        "mask": f"{mask.label} ({mask.digest})",
        "heads": f"{problem.heads_q}:{problem.num_heads_kv}",
        "head_dim": str(problem.head_dim),
        "dtype": problem.dtype,
        "device": problem.device.kind,
        "direction": str(problem.direction),
        "softmax_scale": str(problem.softmax_scale),
        "deterministic": str(problem.deterministic),
        "allow_unverified": str(problem.allow_unverified),
        "strategy": strategy,
        "kernel": kernel,
        "placement": _said(placement) if isinstance(placement, Layout) else str(placement),
        "transport": str(transport),
        "longca-core": find_core().version,
    }


def _said(layout: Layout) -> str:
    """A layout in words that ranks compare. The entry holds the layout, so its number stands for it."""
    return _SAID.get(None, id(layout), lambda: (layout, layout_words(layout)))[1]


def _check_lengths(layout: Layout, rank: int, lengths: tuple[int, int]) -> None:
    """Checks the tokens of this rank's q and k.

    Raises:
        RequestError: They are not the tokens that the layout gives it.
    """
    if lengths != (tokens := layout.shard_size(rank), tokens):
        raise RequestError(
            f"q has {lengths[0]} tokens and k {lengths[1]}, but rank {rank} of {layout.world_size} holds {tokens} of "
            f"{layout.num_tokens} here; shard with longca.layout, and give the same placement"
        )


def _about(
    problem: Problem, strategy: str, mesh: DeviceMesh, kernel: str, placement: str | Layout, transport: Transport | str
) -> tuple[Hashable, ...]:
    """Everything that a call's plan depends on, apart from the mask."""
    # A layout counts by its identity, because comparing long ones takes time. The entry holds the layout.
    where = id(placement) if isinstance(placement, Layout) else placement
    return plugins.registry(), problem.settings, strategy, mesh, groups_of(mesh), kernel, where, transport


def _make_ready(
    problem: Problem,
    strategy: str,
    mesh: DeviceMesh,
    kernel: str,
    placement: str | Layout,
    transport: Transport | str,
    together: tuple[Ranks, tuple[int, int]] | None = None,
) -> _Ready | None:
    """Makes a call ready. A rank that is alone starts no collective, and returns None if the strategy is not there.

    Args:
        problem: As in `parallel_attention`, like the next five arguments.
        strategy: Name of the strategy, or `auto`.
        mesh: The device mesh.
        kernel: Name of the kernel or pair, or `auto`.
        placement: Name of the placement, `auto`, or a layout.
        transport: The way to move tensors, or `auto`.
        together: The ranks that make it together, and this rank's tokens of q and k. None for a rank that is alone.
    """
    registry, given, alone = plugins.registry(), isinstance(placement, Layout), together is None
    layout = placement if isinstance(placement, Layout) else placed(problem, strategy, mesh, kernel, placement, alone)
    strategy = _named(strategy, layout)
    manifest = registry.strategy(strategy)
    if given:
        check_layout(layout, problem, strategy, axis_sizes(mesh, manifest.axes))
    if kernel == AUTO:
        kernel = choose_first(registry, problem, lambda asked: choose_kernel(registry, asked, layout), layout)
    elif not (verdict := registry.resolve(kernel, problem, layout)):
        verdict.check(tuple(other for other in registry.kernels if registry.resolve(other, problem, layout)))
    else:
        verify_first(registry, verdict, problem.device)
    rank, said = rank_in(mesh, manifest.axes), _said(layout)
    if together is not None:
        ranks, lengths = together
        _check_lengths(layout, rank, lengths)
        provider = registry.strategy_provider(strategy)
        ranks.agree({"layout": said, provider.distribution: provider.version})
    made = strategy_on(strategy, mesh, transport, alone)
    if made is None:
        return None

    def plan() -> _Ready:
        planned = made.plan(problem, layout, registry.load(kernel))
        if alone and mesh.device_type == "cuda":
            torch.cuda.current_stream().synchronize()  # another thread may find the plan at once
        return _Ready(made, planned, layout, rank)

    # The entry holds the strategy and the layout, so their numbers stand for them.
    return _PLANNED.get(problem.mask, (id(made), id(layout), problem.settings, kernel), plan)


def strategy_on(name: str, mesh: DeviceMesh, transport: Transport | str, alone: bool = False) -> Strategy | None:
    """A strategy on a mesh, constructed at its first use by all ranks together. A rank that is alone may get None."""
    registry = plugins.registry()
    manifest = registry.strategy(name)
    moved_by = transport_of(transport, manifest)
    about = registry, name, mesh, groups_of(mesh), moved_by
    if alone:
        return _STRATEGIES.find(None, about)
    return _STRATEGIES.get(None, about, lambda: constructed(registry.load_strategy(name), manifest, mesh, moved_by))


def _named(strategy: str, layout: Layout) -> str:
    """The strategy's name. `auto` takes the layout's strategy.

    Raises:
        RequestError: The layout was made by hand, and names no strategy.
    """
    if strategy != AUTO:
        return strategy
    if layout.strategy is None:
        raise RequestError(
            "strategy='auto' takes the strategy of the layout, and this one was made by hand; name the strategy"
        )
    return layout.strategy


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
