"""Calls: what is kept of the latest calls on a mesh, which its ranks make together."""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from torch.distributed.device_mesh import DeviceMesh

from longca.parallel.agreement import Ranks
from longca.parallel.meshes import groups_of
from longca.parallel.ready import Ready
from longca.plan_cache import PlanCache

__all__ = ["Calls", "Known", "calls_on"]


class Known(NamedTuple):
    """A call that is ready, and its number among the new calls on its mesh."""

    ready: Ready
    number: int


class Calls:
    """The calls on a mesh.

    Args:
        mesh: The mesh.

    Attributes:
        ranks: The mesh's ranks, which compare the calls.
        latest: The latest calls.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self.ranks = Ranks.of(mesh)
        self.latest: PlanCache[Known] = PlanCache(64)
        self._numbers = count()

    def known(self, ready: Ready) -> Known:
        """A new call, from now on a known one."""
        return Known(ready, next(self._numbers))


#: The calls on the latest meshes. A rank may be in several. With calls of its own for each mesh, all of its ranks drop
#: the same ones.
_CALLS: PlanCache[Calls] = PlanCache(64)


def calls_on(mesh: DeviceMesh) -> Calls:
    """The calls on a mesh that includes this process."""
    return _CALLS.get(None, (mesh, groups_of(mesh)), lambda: Calls(mesh))
