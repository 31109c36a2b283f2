"""Device meshes as strategies see them: by the names of their axes.

A mesh's dims may come in any order, and only say which device sits where; a strategy's axes, in its manifest's order,
say how its ranks are numbered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch.distributed.device_mesh import DeviceMesh

from longca.errors import RequestError

__all__ = ["axis_sizes", "check_member", "mesh_dims", "named_sizes", "rank_in"]


def mesh_dims(mesh: DeviceMesh, axes: Sequence[str]) -> tuple[int, ...]:
    """The mesh's dim of each of a strategy's axes. For a strategy of one axis a mesh of one dim may have any name.

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


def axis_sizes(mesh: DeviceMesh, axes: Sequence[str]) -> dict[str, int]:
    """Ranks along each of a strategy's axes.

    Raises:
        RequestError: As in `mesh_dims`.
    """
    return {axis: mesh.size(dim) for axis, dim in zip(axes, mesh_dims(mesh, axes), strict=True)}


def named_sizes(sizes: Mapping[str, int], axes: Sequence[str]) -> dict[str, int]:
    """Sizes given by name as ranks along each of a strategy's axes: as in `mesh_dims`, one may have any name.

    Those of other axes are returned as they are; the registry refuses them with what the strategy needs.
    """
    return dict(zip(axes, sizes.values(), strict=True)) if len(axes) == len(sizes) == 1 else dict(sizes)


def rank_in(mesh: DeviceMesh, axes: Sequence[str]) -> int:
    """This process's rank in a layout: through the strategy's axes in their order, the last one fastest.

    Raises:
        RequestError: As in `mesh_dims`, or this process is not in the mesh.
    """
    coordinate, rank = check_member(mesh), 0
    for dim in mesh_dims(mesh, axes):
        rank = rank * mesh.size(dim) + coordinate[dim]
    return rank


def check_member(mesh: DeviceMesh) -> Sequence[int]:
    """This process's coordinate in a mesh.

    Raises:
        RequestError: It is not in the mesh.
    """
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise RequestError("this process is not in the mesh; only its ranks take part in the strategy")
    return coordinate


def _check_order(mesh: DeviceMesh) -> None:
    """Process groups number their ranks in ascending order, and a mesh's coordinates must be these numbers."""
    for dim in range(mesh.ndim):
        if (mesh.mesh.diff(dim=dim) <= 0).any():
            name = mesh.mesh_dim_names[dim] if mesh.mesh_dim_names else dim
            raise RequestError(
                f"the mesh {mesh.mesh.tolist()} has ranks that do not ascend along its dim {name}, and process groups "
                f"number theirs in ascending order. Make it with init_device_mesh, whose ranks do; which device a rank "
                f"has is chosen with torch.cuda.set_device or CUDA_VISIBLE_DEVICES"
            )
