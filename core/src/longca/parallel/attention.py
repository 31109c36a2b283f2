"""Attention under a context-parallel strategy: local shards in and out, differentiable.

The strategy plans all of a rank's steps at the first use of a mask; later calls, those of other layers too, reuse the
plan. It communicates, so all ranks of the mesh call with the same mask, names and shapes, in the same order. A compiler
sees it as a break in the graph.
"""

from __future__ import annotations

import atexit
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from longca import plugins
from longca.errors import RequestError
from longca.kernels.base import in_given_dtypes
from longca.kernels.choice import log
from longca.manifests import Layout, Problem
from longca.parallel.layout_checks import check_layout
from longca.parallel.layouts import groups_of, placed
from longca.parallel.meshes import axis_sizes, rank_in
from longca.parallel.sharing import AUTO, choose_kernel
from longca.parallel.strategy import Strategy, StrategyPlan
from longca.plugins import Registry

__all__ = ["parallel_attention"]


class _Ready(NamedTuple):
    """A strategy, its plan, and how many tokens this rank gives."""

    strategy: Strategy
    plan: StrategyPlan
    layout: Layout
    rank: int


def parallel_attention(
    q: Tensor, k: Tensor, v: Tensor, problem: Problem, strategy: str, mesh: DeviceMesh, kernel: str, placement: Any
) -> tuple[Tensor, Tensor]:
    """out [Tl, Hq, D] and lse [Hq, Tl] of this rank's tokens; see `longca.attention`.

    Args:
        q: This rank's queries: [Tl, Hq, D].
        k: This rank's keys: [Tl, Hkv, D].
        v: This rank's values: [Tl, Hkv, D].
        problem: What is asked of all ranks together.
        strategy: Name of the strategy, or `auto`.
        mesh: Whose dims are named as the strategy's axes.
        kernel: Name of the kernel or pair, or `auto`.
        placement: Name of the placement, `auto`, or a layout of the strategy.

    Raises:
        RequestError: A mesh of other axes, or none of which this process is a rank; a layout of something else; or a
            shard of another length than this rank's, which that rank alone finds.
        UnknownNameError: Nobody provides the strategy, its placement or the kernel.
        UnsupportedError: The strategy has no layout for this, or the kernel does not take every step of it.
    """
    registry, key = plugins.registry(), problem.concrete_mask.key
    where = _Same(placement) if isinstance(placement, Layout) else placement
    ready = _ready(registry, problem, strategy, mesh, groups_of(mesh), kernel, where, key)
    if q.shape[0] != (tokens := ready.layout.shard_size(ready.rank)) or k.shape[0] != tokens:
        raise RequestError(
            f"q has {q.shape[0]} tokens and k {k.shape[0]}, but rank {ready.rank} of {ready.layout.world_size} holds "
            f"{tokens} of {problem.concrete_mask.seqlen_q} here; shard with longca.layout, and give the same placement"
        )
    training = problem.direction == "backward"
    return _Attention.apply(q, k, v, ready.strategy, ready.plan, training)  # type: ignore[no-untyped-call]


class _Same:
    """A layout as a key: by identity, since comparing long ones by their values at each call would take time."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def __hash__(self) -> int:
        return id(self.layout)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.layout is other.layout


@lru_cache(maxsize=64)
def _ready(
    registry: Registry,
    problem: Problem,
    strategy: str,
    mesh: DeviceMesh,
    groups: tuple[ProcessGroup, ...],
    kernel: str,
    placement: str | _Same,
    _key: int,
) -> _Ready:
    """What a call needs, made at its first use. The key tells apart equal masks of other blocks."""
    layout = placement.layout if isinstance(placement, _Same) else placed(problem, strategy, mesh, kernel, placement)
    strategy = _named(strategy, layout)
    axes = registry.strategy(strategy).axes
    if isinstance(placement, _Same):
        check_layout(layout, problem, strategy, axis_sizes(mesh, axes))
    if kernel == AUTO:
        choice = choose_kernel(registry, problem, layout)
        log(choice)
        kernel = choice.kernel
    elif not (verdict := registry.resolve(kernel, problem, layout)):
        verdict.check(tuple(other for other in registry.kernels if registry.resolve(other, problem, layout)))
    made = _strategy(registry, strategy, mesh, groups)
    plan = made.plan(problem, layout, registry.load(kernel))
    return _Ready(made, plan, layout, rank_in(mesh, axes))


def _named(strategy: str, layout: Layout) -> str:
    """The strategy by its name: `auto` is that of the layout.

    Raises:
        RequestError: The layout was made by hand, and does not say of which strategy it is.
    """
    if strategy != AUTO:
        return strategy
    if layout.strategy is None:
        raise RequestError(
            "strategy='auto' takes the strategy of the layout, and this one was made by hand; name the strategy"
        )
    return layout.strategy


@lru_cache(maxsize=64)
def _strategy(registry: Registry, name: str, mesh: DeviceMesh, _groups: tuple[ProcessGroup, ...]) -> Strategy:
    made: Strategy = registry.load_strategy(name)(mesh)
    return made


@atexit.register
def _forget() -> None:
    """Lets go of process groups, whose threads end with them: one that needs Python later than this aborts."""
    _ready.cache_clear()
    _strategy.cache_clear()


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
