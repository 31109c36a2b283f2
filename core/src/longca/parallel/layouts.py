"""layout: which tokens each rank holds under a strategy; and which strategy and placement all ranks take for `auto`.

What `auto` is is found once for a mask, mesh and kernel, whether gradients are asked for or not, so that a model is
trained and evaluated on the same shards.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from longca import plugins
from longca.errors import RequestError, UnsupportedError
from longca.kernels.base import check_mask, device_of
from longca.kernels.choice import log
from longca.manifests import Device, Layout, Problem
from longca.masks import Mask
from longca.parallel.meshes import axis_sizes, check_member, named_sizes, one_host, runnable
from longca.parallel.sharing import AUTO, Arrangement, arrange
from longca.plugins import Registry

__all__ = ["AUTO", "groups_of", "layout", "placed"]

#: Strategies to choose from, each with the ranks along its axes.
_Wanted = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]


def layout(
    mask: Mask,
    *,
    strategy: str,
    mesh: DeviceMesh | Mapping[str, int],
    heads: tuple[int, int],
    head_dim: int = 128,
    dtype: torch.dtype | str = torch.bfloat16,
    kernel: str = AUTO,
    placement: str = AUTO,
    device: Device | None = None,
) -> Layout:
    """Which tokens each rank holds, and computes what, under a strategy.

    With `auto` and a device mesh it is a collective call: the first rank's choice is everyone's.

    Args:
        mask: The mask of all tokens; as many queries as keys.
        strategy: Name of a strategy; `auto` for the one that is predicted quickest on the mesh, which
            `Layout.strategy` names.
        mesh: A device mesh whose dims are named as the strategy's axes; or, to ask without processes, the number of
            ranks along each axis. For a strategy of one axis a mesh of one dim may have any name.
        heads: Query heads and KV heads.
        head_dim: Head dimension.
        dtype: Data type of q, k and v.
        kernel: Name of the kernel or pair that will run; `auto` as in `longca.attention`.
        placement: How the strategy places tokens; `auto` for what is predicted quickest with the kernel.
        device: What it will run on; needed where `mesh` is no device mesh.

    Raises:
        RequestError: A mesh of other axes, or none of which this process is a rank; no device; heads that are no pair.
        UnknownNameError: Nobody provides the strategy, its placement or the kernel.
        UnsupportedError: The strategy has no layout for this, or no kernel takes every step of one.
    """
    check_mask(mask)
    if not isinstance(mesh, (DeviceMesh, Mapping)):
        raise RequestError(
            f"mesh is of type {type(mesh).__name__}; give a DeviceMesh, or a dict of the ranks along each axis"
        )
    if device is None:
        if not isinstance(mesh, DeviceMesh):
            raise RequestError("sizes of axes do not say what it runs on; give device=longca.Device(...)")
        device = device_of(torch.empty(0, device=mesh.device_type))
    if not isinstance(heads, (tuple, list)) or len(heads) != 2:
        raise RequestError(f"heads is {heads!r}; give (query heads, KV heads)")
    problem = Problem(
        mask=mask,
        heads_q=heads[0],
        heads_kv=heads[1],
        head_dim=head_dim,
        dtype=str(dtype).removeprefix("torch."),  # type: ignore[arg-type]  # Problem checks it
        device=device,
    )
    return placed(problem, strategy, mesh, kernel, placement)


def placed(
    problem: Problem, strategy: str, mesh: DeviceMesh | Mapping[str, int], kernel: str, placement: str
) -> Layout:
    """The layout of a problem, the same for both of its directions; see `layout`."""
    registry = plugins.registry()
    wanted = _wanted(registry, strategy, mesh)
    if strategy != AUTO and placement == AUTO and len(only := registry.strategy(strategy).placements) == 1:
        placement = only[0]
    if AUTO in (strategy, placement):
        trained = replace(problem, direction="backward", softmax_scale=None, deterministic=False)
        frozen = tuple((name, tuple(sizes.items())) for name, sizes in wanted.items())
        about = registry, trained, frozen, kernel, placement, one_host(mesh), problem.concrete_mask.key
        agreed = _agreed(*about, mesh, groups_of(mesh)) if isinstance(mesh, DeviceMesh) else _auto(*about)
        strategy, placement = agreed
    return registry.layout(strategy, problem, wanted[strategy], placement)


def _wanted(registry: Registry, strategy: str, mesh: DeviceMesh | Mapping[str, int]) -> dict[str, dict[str, int]]:
    """The strategies to choose from, each with the ranks along its axes."""
    if strategy == AUTO:
        return runnable({name: manifest.axes for name, manifest in registry.strategies.items()}, mesh)
    axes = registry.strategy(strategy).axes
    return {strategy: axis_sizes(mesh, axes) if isinstance(mesh, DeviceMesh) else named_sizes(mesh, axes)}


def groups_of(mesh: DeviceMesh) -> tuple[dist.ProcessGroup, ...]:
    """A mesh's process groups: what tells it apart from an equal one, made after those of this one were destroyed.

    Raises:
        RequestError: This process is not in the mesh.
    """
    check_member(mesh)
    return tuple(mesh.get_all_groups())


# Two caches: what a rank asks for by itself must not drive out what all of them agreed on, and agree on again together.


@lru_cache(maxsize=64)
def _agreed(
    registry: Registry,
    problem: Problem,
    wanted: _Wanted,
    kernel: str,
    placement: str,
    one_host: bool,
    _key: int,
    mesh: DeviceMesh,
    _groups: tuple[dist.ProcessGroup, ...],
) -> tuple[str, str]:
    """The strategy and the placement to take, the same on all ranks of a mesh."""
    made = _arranged(registry, problem, wanted, kernel, placement, one_host)
    if not any(check_member(mesh)):
        log(made.choice)
    return _agree(mesh, (made.strategy, made.placement))


# Its keys hold process groups, whose threads abort the process if they need Python when it has ended.
atexit.register(_agreed.cache_clear)


@lru_cache(maxsize=64)
def _auto(
    registry: Registry, problem: Problem, wanted: _Wanted, kernel: str, placement: str, one_host: bool, _key: int
) -> tuple[str, str]:
    """The same by what this process knows. The key tells apart equal masks of other blocks."""
    made = _arranged(registry, problem, wanted, kernel, placement, one_host)
    log(made.choice)
    return made.strategy, made.placement


def _arranged(
    registry: Registry, problem: Problem, wanted: _Wanted, kernel: str, placement: str, one_host: bool
) -> Arrangement:
    """What to take for training; or, where no kernel has a backward, for a forward."""
    sizes = {name: dict(of_axes) for name, of_axes in wanted}
    try:
        return arrange(registry, problem, sizes, kernel, placement, one_host)
    except UnsupportedError:
        return arrange(registry, replace(problem, direction="forward"), sizes, kernel, placement, one_host)


def _agree(mesh: DeviceMesh, choice: tuple[str, str]) -> tuple[str, str]:
    """The choice of the mesh's first rank. Ranks on several machines may have measured other kernels as fastest."""
    said = [choice]
    for dim in range(mesh.ndim):
        group = mesh.get_group(dim)
        dist.broadcast_object_list(said, src=dist.get_global_rank(group, 0), group=group)
    return said[0]
