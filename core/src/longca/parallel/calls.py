"""Calls: what is kept of the latest calls on a mesh, which its ranks make together."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import NamedTuple

from torch.distributed.device_mesh import DeviceMesh

from longca.parallel.agreement import Ranks
from longca.parallel.meshes import groups_of
from longca.parallel.ready import Ready
from longca.plan_cache import PlanCache

__all__ = ["Calls", "Known", "calls_on"]


class Known(NamedTuple):
    """A call that is ready, its number among the new calls on its mesh, and the call in words that ranks compare."""

    ready: Ready
    number: int
    words: Mapping[str, str]


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

    def known(self, ready: Ready, words: Mapping[str, str]) -> Known:
        """A new call, from now on a known one."""
        return Known(ready, next(self._numbers), words)


#: The calls on the latest meshes. A rank may be in several. With calls of its own for each mesh, all of its ranks drop
#: the same ones.
_CALLS: PlanCache[Calls] = PlanCache(64)


def calls_on(mesh: DeviceMesh) -> Calls:
    """The calls on a mesh that includes this process."""
    return _CALLS.get(None, (mesh, groups_of(mesh)), lambda: Calls(mesh))
