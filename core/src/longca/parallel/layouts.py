"""layout: the tokens that each rank holds and the attention calls that it makes under a strategy.

`placed` makes the layout of a call. `check_layout` checks a layout that the caller gave. The strategy and the placement
that `auto` takes come from `longca_advice.auto_layout`. The ranks of a device mesh agree on them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import overload

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from longca import plugins
from longca.adviser import AUTO, Arrangement, adviser, log
from longca.errors import RequestError
from longca.kernels.base import check_mask, device_of
from longca.manifests import Device, Layout, Problem
from longca.manifests.step_cuts import rank_areas
from longca.masks import Mask
from longca.parallel.meshes import axis_sizes, groups_of, is_first, named_sizes, one_host, runnable
from longca.plan_cache import PlanCache
from longca.plugins import Registry
from longca.shared_layouts import check_weighted, shared_layouts

__all__ = ["check_layout", "layout", "layout_words", "placed", "placed_together"]

#: The strategies and placements that the ranks of a mesh agreed on.
_AGREED: PlanCache[tuple[str, str]] = PlanCache(64)


@overload
def layout(
    mask: Mask,
    *,
    strategy: str,
    mesh: DeviceMesh | Mapping[str, int],
    heads: tuple[int, int],
    head_dim: int = ...,
    dtype: torch.dtype | str = ...,
    kernel: str = ...,
    placement: str = ...,
    device: Device | None = ...,
) -> Layout: ...


@overload
def layout(
    mask: Sequence[tuple[Mask, float]],
    *,
    strategy: str,
    mesh: DeviceMesh | Mapping[str, int],
    heads: tuple[int, int],
    head_dim: int = ...,
    dtype: torch.dtype | str = ...,
    kernel: str = ...,
    placement: str = ...,
    device: Device | None = ...,
) -> tuple[Layout, ...]: ...


def layout(
    mask: Mask | Sequence[tuple[Mask, float]],
    *,
    strategy: str,
    mesh: DeviceMesh | Mapping[str, int],
    heads: tuple[int, int],
    head_dim: int = 128,
    dtype: torch.dtype | str = torch.bfloat16,
    kernel: str = AUTO,
    placement: str = AUTO,
    device: Device | None = None,
) -> Layout | tuple[Layout, ...]:
    """The tokens that each rank holds, and the attention calls that it makes, under a strategy.

    With `auto` and a device mesh it is a collective call: the first rank's choice is everyone's.

    Several masks, each with a weight such as the number of its layers, share one placement. It is balanced for the
    weighted sum of their visible pairs, and `auto` minimizes the weighted sum of their predicted times. There is one
    layout for each mask, in their order, and all of them have the same shards.

    Args:
        mask: The mask of all tokens, with as many queries as keys. Or several masks of the same tokens, each with its
            weight: [(mask, weight), ...].
        strategy: Name of a strategy. `auto` takes the strategy with the least predicted time on the mesh, and
            `Layout.strategy` names it.
        mesh: A device mesh with dims named as the strategy's axes. Or the number of ranks along each axis, which needs
            no processes. For a strategy of one axis, a mesh of one dim may have any name.
        heads: Query heads and KV heads.
        head_dim: Head dimension.
        dtype: Data type of q, k and v.
        kernel: Name of the kernel or pair that will run. `auto` as in `longca.attention`.
        placement: The way to place tokens on ranks. `auto` takes the least predicted time with the kernel.
        device: The device that it will run on. Required if `mesh` is no device mesh.

    Raises:
        RequestError: A mesh of other axes, or one without this process. No device, or heads that are no pair. Masks of
            different lengths, or a weight that is not a finite number above 0.
        UnknownNameError: Nobody provides the strategy, its placement or the kernel.
        UnsupportedError: The strategy has no layout for this, or no kernel takes every step of one.
    """
    weighed = check_weighted(mask) if isinstance(mask, (tuple, list)) else ()
    first = weighed[0][0] if weighed else mask
    check_mask(first)
    if not isinstance(mesh, (DeviceMesh, Mapping)):
        raise RequestError(
            f"mesh is of type {type(mesh).__name__}; give a DeviceMesh, or a dict of the ranks along each axis"
        )
    if device is None:
        if not isinstance(mesh, DeviceMesh):
            raise RequestError("sizes of axes do not name a device; give device=longca.Device(...)")
        device = device_of(torch.empty(0, device=mesh.device_type))
    if not isinstance(heads, (tuple, list)) or len(heads) != 2:
        raise RequestError(f"heads is {heads!r}; give (query heads, KV heads)")
    problem = Problem(
        mask=first,  # type: ignore[arg-type]  # it was checked
        heads_q=heads[0],
        heads_kv=heads[1],
        head_dim=head_dim,
        dtype=str(dtype).removeprefix("torch."),  # type: ignore[arg-type]  # Problem checks it
        device=device,
    )
    if weighed:
        layouts = placed_together(problem, weighed, strategy, mesh, kernel, placement)
        for (each, _), one in zip(weighed, layouts, strict=True):
            _check_kernel(kernel, replace(problem, mask=each), one)
        return layouts
    placed_alone = placed(problem, strategy, mesh, kernel, placement)
    _check_kernel(kernel, problem, placed_alone)
    return placed_alone


def _check_kernel(kernel: str, problem: Problem, layout: Layout) -> None:
    """Checks that a named kernel takes every step of a layout, on a machine that has it.

    Raises:
        UnknownNameError: Nobody provides the kernel.
        UnsupportedError: It does not.
    """
    if kernel != AUTO:
        asked = replace(problem, allow_unverified=True)
        plugins.registry().resolve(kernel, asked, layout, anywhere=True).check()


def placed_together(
    problem: Problem,
    weighed: Sequence[tuple[Mask, float]],
    strategy: str,
    mesh: DeviceMesh | Mapping[str, int],
    kernel: str,
    placement: str,
    alone: bool = False,
) -> tuple[Layout, ...]:
    """The layout of each mask, with the same shards in all.

    Args:
        problem: The problem of the first mask.
        weighed: The masks with their weights.
        strategy: As in `placed`, like the other arguments.
        mesh: The device mesh, or the number of ranks along each axis.
        kernel: Name of the kernel or pair, or `auto`.
        placement: Name of a placement, or `auto`.
        alone: Whether this rank's own choice counts.

    Raises:
        RequestError: As in `layout`.
        UnknownNameError: As in `layout`.
        UnsupportedError: As in `layout`.
    """
    registry = plugins.registry()
    problems = [(replace(problem, mask=mask), weight) for mask, weight in weighed]
    wanted = _wanted(registry, strategy, mesh)
    if AUTO in (strategy, placement):
        arrangement = partial(adviser().arrange_shared, registry, problems, wanted, kernel, placement, one_host(mesh))
        masks = tuple((mask.key, weight) for mask, weight in weighed)
        about = registry, _shape(problem), tuple(wanted), kernel, placement, masks
        strategy, placement = _chosen(problem.mask, about, mesh, arrangement, alone)
    return shared_layouts(registry, problems, strategy, wanted[strategy], placement)


def placed(
    problem: Problem,
    strategy: str,
    mesh: DeviceMesh | Mapping[str, int],
    kernel: str,
    placement: str,
    alone: bool = False,
) -> Layout:
    """The layout of a problem, the same for both of its directions.

    Args:
        problem: The problem of all ranks together.
        strategy: Name of a strategy, or `auto`.
        mesh: A device mesh, or the number of ranks along each axis.
        kernel: Name of the kernel or pair, or `auto`.
        placement: Name of a placement, or `auto`.
        alone: Whether the ranks of a device mesh do not agree on `auto`, and this rank's own choice counts.

    Raises:
        RequestError: As in `layout`.
        UnknownNameError: As in `layout`.
        UnsupportedError: As in `layout`.
    """
    registry = plugins.registry()
    wanted = _wanted(registry, strategy, mesh)
    if strategy != AUTO and placement == AUTO and len(only := registry.strategy(strategy).placements) == 1:
        placement = only[0]
    if AUTO in (strategy, placement):
        arrangement = partial(adviser().arranged, registry, problem, wanted, kernel, placement, one_host(mesh))
        about = registry, _shape(problem), tuple(wanted), kernel, placement
        strategy, placement = _chosen(problem.mask, about, mesh, arrangement, alone)
    return registry.layout(strategy, problem, wanted[strategy], placement)


def _shape(problem: Problem) -> tuple[Hashable, ...]:
    return problem.heads_q, problem.heads_kv, problem.head_dim, problem.dtype, problem.device


def _wanted(registry: Registry, strategy: str, mesh: DeviceMesh | Mapping[str, int]) -> dict[str, dict[str, int]]:
    """The strategies to choose from, each with the ranks along its axes."""
    if strategy == AUTO:
        return runnable({name: manifest.axes for name, manifest in registry.strategies.items()}, mesh)
    axes = registry.strategy(strategy).axes
    return {strategy: axis_sizes(mesh, axes) if isinstance(mesh, DeviceMesh) else named_sizes(mesh, axes)}


def _chosen(
    mask: object,
    about: Hashable,
    mesh: DeviceMesh | Mapping[str, int],
    arrangement: Callable[[], Arrangement],
    alone: bool,
) -> tuple[str, str]:
    """The strategy and the placement of an arrangement, on which the ranks of a device mesh agree.

    They take the choice of the mesh's first rank, because ranks on several machines may have measured other kernels as
    fastest.
    """

    def chosen() -> tuple[str, str]:
        made = arrangement()
        choice = made.strategy, made.placement
        if alone:
            return choice
        if not isinstance(mesh, DeviceMesh) or is_first(mesh):
            log(made.choice)
        return _agree(mesh, choice) if isinstance(mesh, DeviceMesh) else choice

    if alone or not isinstance(mesh, DeviceMesh):
        return chosen()
    return _AGREED.get(mask, (about, mesh, groups_of(mesh)), chosen)


def _agree(mesh: DeviceMesh, choice: tuple[str, str]) -> tuple[str, str]:
    """The choice of the mesh's first rank."""
    said = [choice]
    for dim in range(mesh.ndim):
        group = mesh.get_group(dim)
        dist.broadcast_object_list(said, src=dist.get_global_rank(group, 0), group=group)
    return said[0]


def check_layout(layout: Layout, problem: Problem, strategy: str, sizes: Mapping[str, int]) -> None:
    """Checks that a layout which the caller gave belongs to a problem and a strategy.

    All ranks find the same, so that none waits for another.

    Args:
        layout: The layout.
        problem: The problem of all ranks together.
        strategy: The strategy's name.
        sizes: Ranks along each of its axes.

    Raises:
        RequestError: It does not. The message names the problem or strategy that it belongs to.
    """
    made_for, ask = dict(layout.axis_sizes), "ask longca.layout for the one of this call, or give a placement's name"
    if layout.strategy is not None and (layout.strategy, made_for) != (strategy, dict(sizes)):
        raise RequestError(
            f"this layout is one of {layout.strategy} on {_words(made_for)}, and {strategy} runs on {_words(sizes)} "
            f"here; {ask}"
        )
    ranks, tokens = prod(sizes.values()), problem.concrete_mask.seqlen_q
    if (layout.world_size, layout.num_tokens) != (ranks, tokens):
        of = f"{layout.num_tokens} tokens on {layout.world_size} ranks"
        raise RequestError(f"this layout is of {of}, and the mask of {tokens}, on {ranks}; {ask}")
    ends = ((heads_q[1], heads_kv[1]) for heads_q, heads_kv in layout.table.heads)
    last = max(ends, default=(0, 0))
    if last != (problem.heads_q, problem.num_heads_kv):
        heads = f"{problem.heads_q}:{problem.num_heads_kv} heads"
        raise RequestError(f"this layout is of {last[0]}:{last[1]} heads, and the tensors have {heads}; {ask}")
    if sum(rank_areas(problem, layout)) != problem.area:
        raise RequestError(
            f"this layout is of another mask: its steps show other pairs than this {problem.concrete_mask.label}. Ask "
            "longca.layout for this mask too; placed contiguous or zigzag, ranks hold the same tokens of both"
        )


def layout_words(layout: Layout) -> str:
    """A layout in words that are the same for equal layouts, in every process: its size and a digest."""
    steps = layout.table
    named = layout.strategy, layout.axis_sizes, layout.shards, steps.parts, steps.heads
    digest = hashlib.blake2b(repr(named).encode(), digest_size=8)
    digest.update(steps.table.tobytes() + steps.bounds.tobytes())
    return f"{layout.strategy or 'one made by hand'} on {layout.world_size} ranks ({digest.hexdigest()})"


def _words(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in sizes.items())
