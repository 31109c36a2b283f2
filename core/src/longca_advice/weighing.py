"""Weighing: the time of a way with a kernel for each direction."""

from __future__ import annotations

from collections.abc import Sequence

from longca_advice.ways import Role, Way
from longca_advice.weighed import Weighed

__all__ = ["roles_of", "weigh"]

#: The roles of the kernels of a pair.
_HALVES: tuple[Role, Role] = ("forward", "backward")


def roles_of(kernels: Sequence[str]) -> tuple[Role, ...]:
    """The role of each direction's kernel."""
    return ("both", "both") if len(set(kernels)) < len(kernels) else _HALVES[: len(kernels)]


def weigh(way: Way, kernels: Sequence[str], exactly: bool = True) -> Weighed | None:
    """A way with a kernel for each direction, or None if a time is unknown.

    Args:
        way: The way.
        kernels: The kernel of each direction. Each one takes every step, if the way is weighed exactly.
        exactly: Whether to weigh the cut of each step, or the tiles of the whole mask.

    Raises:
        UnsupportedError: The time of a collective is unknown.
    """
    each = zip(kernels, way.asked.directions, roles_of(kernels), strict=True)
    found = [way.timeline(kernel, direction, role if exactly else None) for kernel, direction, role in each]
    known = tuple(timeline for timeline in found if timeline is not None)
    return Weighed(way, tuple(kernels), known) if len(known) == len(found) else None
