"""Ready: everything that a call under a strategy needs before it moves data.

The ranks of a mesh make a new call ready together. The side thread of `longca.prefetch` makes the parts of it that
need no other rank.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import torch
from torch.distributed.device_mesh import DeviceMesh

from longca import plugins
from longca.adviser import AUTO, adviser, log
from longca.errors import RequestError
from longca.kernels.unverified import check_unverified, choose_checked
from longca.manifests import Layout, Problem, installed_version
from longca.parallel.agreement import Ranks
from longca.parallel.layouts import check_layout, layout_words, placed
from longca.parallel.meshes import axis_sizes, groups_of, is_first, rank_in
from longca.parallel.strategy import Strategy, StrategyPlan
from longca.parallel.transport import Transport, constructed, transport_of
from longca.plan_cache import PlanCache

__all__ = ["ParallelCall", "Ready", "check_lengths", "make_ready", "strategy_on"]


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
            "head_dim": str(problem.head_dim),
            "dtype": problem.dtype,
            "device": problem.device.kind,
            "direction": str(problem.direction),
            "softmax_scale": str(problem.softmax_scale),
            "deterministic": str(problem.deterministic),
            "allow_unverified": str(problem.allow_unverified),
            "strategy": self.strategy,
            "kernel": self.kernel,
            "placement": _said(placement) if isinstance(placement, Layout) else str(placement),
            "transport": str(self.transport),
            "longca-core": installed_version("longca-core") or "",
        }


class Ready(NamedTuple):
    """A strategy, its plan and layout, and this process's rank in the layout."""

    strategy: Strategy
    plan: StrategyPlan
    layout: Layout
    rank: int


#: The strategies of the latest meshes. Ranks make them together.
_STRATEGIES: PlanCache[Strategy] = PlanCache(64)
#: The latest plans. A rank makes them alone, so the side thread of `longca.prefetch` makes them too.
_PLANNED: PlanCache[Ready] = PlanCache(64)
#: The words of the latest layouts.
_SAID: PlanCache[tuple[Layout, str]] = PlanCache(16)


def _said(layout: Layout) -> str:
    """A layout in words that ranks compare. The entry holds the layout, so its number stands for it."""
    return _SAID.get(None, id(layout), lambda: (layout, layout_words(layout)))[1]


def check_lengths(layout: Layout, rank: int, lengths: tuple[int, int]) -> None:
    """Checks the tokens of this rank's q and k.

    Raises:
        RequestError: They are not the tokens that the layout gives it.
    """
    if lengths != (tokens := layout.shard_size(rank), tokens):
        raise RequestError(
            f"q has {lengths[0]} tokens and k {lengths[1]}, but rank {rank} of {layout.world_size} holds {tokens} of "
            f"{layout.num_tokens} here; shard with longca.layout, and give the same placement"
        )


def make_ready(call: ParallelCall, together: tuple[Ranks, tuple[int, int]] | None = None) -> Ready | None:
    """Makes a call ready. A rank that is alone starts no collective, and returns None if the strategy is not there.

    Args:
        call: The call.
        together: The ranks that make it together, and this rank's tokens of q and k. None for a rank that is alone.
    """
    problem, strategy, mesh, kernel, placement, transport = call
    registry, given, alone = plugins.registry(), isinstance(placement, Layout), together is None
    layout = placement if isinstance(placement, Layout) else placed(problem, strategy, mesh, kernel, placement, alone)
    strategy = _named(strategy, layout)
    manifest = registry.strategy(strategy)
    if given:
        check_layout(layout, problem, strategy, axis_sizes(mesh, manifest.axes))
    if kernel == AUTO:
        choice = choose_checked(
            registry, problem, lambda asked: adviser().choose_kernel(registry, asked, layout), layout
        )
        if is_first(mesh):
            log(choice)
        kernel = choice.kernel
    elif not (verdict := registry.resolve(kernel, problem, layout)):
        verdict.check(tuple(other for other in registry.kernels if registry.resolve(other, problem, layout)))
    else:
        check_unverified(registry, verdict, problem)
    rank, said = rank_in(mesh, manifest.axes), _said(layout)
    if together is not None:
        ranks, lengths = together
        check_lengths(layout, rank, lengths)
        provider = registry.strategy_provider(strategy)
        ranks.agree({"layout": said, provider.distribution: provider.version})
    made = strategy_on(strategy, mesh, transport, alone)
    if made is None:
        return None

    def plan() -> Ready:
        planned = made.plan(problem, layout, registry.load(kernel))
        if alone and mesh.device_type == "cuda":
            torch.cuda.current_stream().synchronize()  # another thread may find the plan at once
        return Ready(made, planned, layout, rank)

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
