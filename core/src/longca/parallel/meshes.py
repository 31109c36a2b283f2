"""Device meshes as strategies see them: by the names of their axes.

A mesh's dims may come in any order. They only give each device its place. The strategy's axes number the ranks, in the
order of its manifest.
"""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Mapping, Sequence
from math import prod

from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from longca.errors import RequestError

__all__ = ["axis_sizes", "check_member", "groups_of", "is_first", "mesh_dims", "one_host", "rank_in", "runnable"]

#: Ranks of a host if the environment does not give their number.
_PER_HOST = 8

# Models hold groups in cycles. Threads of a group that is left to the interpreter's end may abort the process.
atexit.register(gc.collect)


def mesh_dims(mesh: DeviceMesh, axes: Sequence[str]) -> tuple[int, ...]:
    """The mesh's dim for each of a strategy's axes. For a strategy of one axis, a mesh of one dim may have any name.

    Raises:
        RequestError: The mesh has other dims, or ranks that do not ascend along one of them.
    """
    _check_order(mesh)
    if len(axes) == 1 and mesh.ndim == 1:
        return (0,)
    names = mesh.mesh_dim_names or ()
    if sorted(names) != sorted(axes):
        sizes = "×".join(map(str, mesh.mesh.shape))
        example = ", ".join(f'"{axis}"' for axis in axes)
        raise RequestError(
            f"the mesh is {sizes} with dims {', '.join(names) or 'of no name'}; this strategy runs over "
            f"{', '.join(axes)}. Make one with init_device_mesh({mesh.device_type!r}, sizes, "
            f"mesh_dim_names=({example}{',' if len(axes) == 1 else ''})), or take those dims of a larger mesh"
        )
    return tuple(names.index(axis) for axis in axes)


def axis_sizes(mesh: DeviceMesh | Mapping[str, int], axes: Sequence[str]) -> dict[str, int]:
    """Ranks along each of a strategy's axes, on a device mesh or from sizes by name.

    A single size may have any name, as in `mesh_dims`. Sizes of other axes are returned unchanged. The registry refuses
    them and names the axes that the strategy needs.

    Raises:
        RequestError: As in `mesh_dims`.
    """
    if isinstance(mesh, Mapping):
        return dict(zip(axes, mesh.values(), strict=True)) if len(axes) == len(mesh) == 1 else dict(mesh)
    return {axis: mesh.size(dim) for axis, dim in zip(axes, mesh_dims(mesh, axes), strict=True)}


def runnable(
    strategies: Mapping[str, Sequence[str]], mesh: DeviceMesh | Mapping[str, int]
) -> dict[str, dict[str, int]]:
    """The strategies, given with their axes, that can run on a mesh, each with the ranks along its axes.

    A mesh of one dim, of any name, is for strategies of one axis. A mesh of several dims is for strategies whose axes
    have the names of the dims.

    Raises:
        RequestError: No strategy can run on the mesh.
    """
    names = tuple(mesh.mesh_dim_names or ()) if isinstance(mesh, DeviceMesh) else tuple(mesh)
    dims = mesh.ndim if isinstance(mesh, DeviceMesh) else len(mesh)
    found = {
        name: axis_sizes(mesh, axes)
        for name, axes in strategies.items()
        if (len(axes) == 1 if dims == 1 else sorted(names) == sorted(axes))
    }
    if not found:
        known = "; ".join(f"{name} over {', '.join(axes)}" for name, axes in strategies.items())
        dims_text = f"{dims} dims, {', '.join(names) or 'of no name'}"
        raise RequestError(f"no strategy runs on a mesh of {dims_text}. There are {known or 'none'}")
    return found


def one_host(mesh: DeviceMesh | Mapping[str, int]) -> bool:
    """Whether all ranks of a mesh are likely to be of one host: `torchrun`'s number of ranks, else 8."""
    per_host = int(os.environ.get("LOCAL_WORLD_SIZE", _PER_HOST))
    if not isinstance(mesh, DeviceMesh):
        return prod(mesh.values()) <= per_host
    return len({rank // per_host for rank in mesh.mesh.flatten().tolist()}) == 1


def rank_in(mesh: DeviceMesh, axes: Sequence[str]) -> int:
    """This process's rank in a layout. Ranks count through the strategy's axes, the last one fastest.

    Raises:
        RequestError: As in `mesh_dims`, or this process is not in the mesh.
    """
    coordinate, rank = check_member(mesh), 0
    for dim in mesh_dims(mesh, axes):
        rank = rank * mesh.size(dim) + coordinate[dim]
    return rank


def groups_of(mesh: DeviceMesh) -> tuple[ProcessGroup, ...]:
    """A mesh's process groups. They distinguish it from an equal mesh that was made after they were destroyed."""
    check_member(mesh)
    return tuple(mesh.get_all_groups())


def check_member(mesh: DeviceMesh) -> Sequence[int]:
    """This process's coordinate in a mesh. A process outside is refused."""
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise RequestError("this process is not in the mesh; only its ranks take part in the strategy")
    return coordinate


def is_first(mesh: DeviceMesh) -> bool:
    """Whether this process is the first rank of a mesh that it is in."""
    return not any(check_member(mesh))


def _check_order(mesh: DeviceMesh) -> None:
    """Checks that a mesh's coordinates are the numbers of ranks in process groups, which ascend."""
    for dim in range(mesh.ndim):
        if (mesh.mesh.diff(dim=dim) <= 0).any():
            name = mesh.mesh_dim_names[dim] if mesh.mesh_dim_names else dim
            raise RequestError(
                f"the mesh {mesh.mesh.tolist()} has ranks that do not ascend along its dim {name}, and process groups "
                f"number theirs in ascending order. Make it with init_device_mesh, whose ranks do; which device a rank "
                f"has is chosen with torch.cuda.set_device or CUDA_VISIBLE_DEVICES"
            )
