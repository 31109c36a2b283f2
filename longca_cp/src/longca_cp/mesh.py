"""Mesh axes: the process group, the size and this rank's place along each axis of a strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from longca.parallel.meshes import mesh_dims, rank_in

__all__ = ["Axis", "axes_of"]


@dataclass(frozen=True)
class Axis:
    """One axis of a mesh, seen from this process.

    Attributes:
        group: The process group of the ranks along it that include this process.
        size: How many they are.
        index: This process's place among them.
    """

    group: dist.ProcessGroup
    size: int
    index: int

    @property
    def by_nccl(self) -> bool:
        """Whether NCCL moves what is on GPUs; a group made without naming a backend has one for each kind of device."""
        return "cuda:nccl" in dist.get_backend_config(self.group)

    def peer(self, offset: int) -> int:
        """The global rank of the process so many places further along, round and round."""
        return dist.get_global_rank(self.group, (self.index + offset) % self.size)

    def source(self, step: int) -> int:
        """Whose data this process has at a step, when at each everyone sends what they have to the next."""
        return (self.index - step) % self.size


def axes_of(mesh: DeviceMesh, names: Sequence[str]) -> tuple[int, tuple[Axis, ...]]:
    """This process's rank in layouts over these axes, and each of the axes.

    Raises:
        RequestError: The mesh has other dims, or this process is not in it.
    """
    rank, dims = rank_in(mesh, names), mesh_dims(mesh, names)
    return rank, tuple(Axis(mesh.get_group(dim), mesh.size(dim), mesh.get_local_rank(dim)) for dim in dims)
