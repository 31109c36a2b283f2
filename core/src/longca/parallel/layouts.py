"""layout: the tokens that each rank holds and the attention calls that it makes under a strategy.

The strategy and the placement that `auto` takes come from `longca_advice`. The ranks of a device mesh agree on them.
"""

from __future__ import annotations

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
from longca.parallel.meshes import axis_sizes, groups_of, is_first, one_host, runnable
from longca.plan_cache import PlanCache
from longca.shared_layouts import check_weighted, shared_layouts

__all__ = ["check_layout", "layout", "placed"]

#: The strategies and placements that the ranks of a mesh agreed on.
_AGREED: PlanCache[tuple[str, str]] = PlanCache()


@overload
def layout(
    mask: Mask,
    *,
    strategy: str,
    mesh: DeviceMesh | Mapping[str, int],
    heads: tuple[int, int],
    head_dim: int = ...,
    head_dim_v: int | None = ...,
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
    head_dim_v: int | None = ...,
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
    head_dim_v: int | None = None,
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
        head_dim: Head dimension of q and k.
        head_dim_v: Head dimension of v. None for that of q and k.
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
        head_dim_v=head_dim_v,
        dtype=str(dtype).removeprefix("torch."),  # type: ignore[arg-type]  # Problem checks it
        device=device,
    )
    layouts = placed(problem, strategy, mesh, kernel, placement, shared=weighed)
    if kernel != AUTO:  # a named kernel takes every step of the layouts, on a machine that has it
        masks = [each for each, _ in weighed] or [problem.concrete_mask]
        for each, made in zip(masks, layouts, strict=True):
            asked = replace(problem, mask=each, allow_unverified=True)
            plugins.registry().resolve(kernel, asked, made, anywhere=True).check()
    return layouts if weighed else layouts[0]


def placed(
    problem: Problem,
    strategy: str,
    mesh: DeviceMesh | Mapping[str, int],
    kernel: str,
    placement: str,
    *,
    shared: Sequence[tuple[Mask, float]] = (),
    alone: bool = False,
) -> tuple[Layout, ...]:
    """The layout of a problem, the same for both of its directions. Or one for each of several masks, of equal shards.

    `shared` are the masks with their weights, the problem's first. The arguments are otherwise as in `layout`. A rank
    that is `alone` makes its own choice for `auto`, on which the ranks of a device mesh do not agree.
    """
    registry = plugins.registry()
    problems = [(replace(problem, mask=mask), weight) for mask, weight in shared] or [(problem, 1.0)]
    if strategy == AUTO:
        wanted = runnable({name: manifest.axes for name, manifest in registry.strategies.items()}, mesh)
    else:
        manifest = registry.strategy(strategy)
        wanted = {strategy: axis_sizes(mesh, manifest.axes)}
        if len(manifest.placements) == 1 and not shared:
            placement = manifest.placements[0]
    if AUTO in (strategy, placement):
        asked = problems, wanted, kernel, placement, one_host(mesh)
        shape = problem.heads_q, problem.heads_kv, problem.dims, problem.dtype, problem.device
        masks = tuple((mask.key, weight) for mask, weight in shared)
        about = registry, shape, tuple(wanted), kernel, placement, masks
        strategy, placement = _chosen(problem.mask, about, mesh, partial(adviser().arrange, registry, *asked), alone)
    return shared_layouts(registry, problems, strategy, wanted[strategy], placement)


def _chosen(
    mask: object,
    about: Hashable,
    mesh: DeviceMesh | Mapping[str, int],
    arranged: Callable[[], Arrangement],
    alone: bool,
) -> tuple[str, str]:
    """The strategy and the placement of an arrangement.

    The ranks of a device mesh take the choice of its first rank, because ranks on several machines may have measured
    other kernels as fastest.
    """

    def chosen() -> tuple[str, str]:
        made = arranged()
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
    """Checks that a layout of the caller belongs to a problem and a strategy. All ranks find the same."""
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


def _words(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in sizes.items())
