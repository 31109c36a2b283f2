"""Meshes: the ways to split ranks into the axes of a strategy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import log2, prod

__all__ = ["few_meshes", "left_out", "mesh_text", "meshes"]

#: The limit of ranks up to which every mesh is a candidate, and the number of candidate meshes beyond it.
_EVERY, _FEW = 64, 4


def meshes(ranks: int, axes: Sequence[str]) -> Iterator[dict[str, int]]:
    """The sizes of a strategy's axes that make up some ranks, none of them 1 where there are several axes.

    A strategy of several axes, one of which has a single rank, is another strategy with more to do.
    """
    for sizes in _factors(ranks, len(axes)):
        if len(axes) == 1 or min(sizes) > 1:
            yield dict(zip(axes, sizes, strict=True))


def few_meshes(ranks: int, axes: Sequence[str], per_host: int) -> list[dict[str, int]]:
    """The candidate meshes of a strategy: all meshes on a few ranks, and a varied selection on many ranks.

    A selected mesh has its innermost axis within a host. In the first one, the two innermost axes fill a host as far as
    possible. Each further one is the farthest from the meshes before it, in the logarithms of its sizes.
    """
    found = list(meshes(ranks, axes))
    if ranks <= _EVERY or len(axes) == 1:
        return found
    within = [sizes for sizes in found if sizes[axes[-1]] <= per_host]
    # How far the ranks of the two innermost axes are from a host's, as a logarithm.
    left = sorted(within or found, key=lambda sizes: abs(log2(prod(sizes[axis] for axis in axes[-2:]) / per_host)))
    chosen = left[:1]
    while len(chosen) < min(_FEW, len(left)):
        chosen.append(max(left, key=lambda sizes: min(_distance(sizes, other) for other in chosen)))
    return [sizes for sizes in found if sizes in chosen]


def left_out(ranks: int, name: str, axes: Sequence[str], per_host: int) -> Iterator[str]:
    """In words, how many meshes of a strategy are candidates. Empty if all are."""
    some, every = len(few_meshes(ranks, axes, per_host)), sum(1 for _ in meshes(ranks, axes))
    if some < every:
        yield f"{some} of the {every} meshes of {name} were looked at, with its axis {axes[-1]} within a host"


def mesh_text(sizes: Mapping[str, int]) -> str:
    """A mesh as records have it: `ring=2,ulysses=4`."""
    return ",".join(f"{axis}={size}" for axis, size in sizes.items())


def _factors(number: int, count: int) -> Iterator[tuple[int, ...]]:
    if count == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            yield from ((first, *others) for others in _factors(number // first, count - 1))


def _distance(sizes: dict[str, int], other: dict[str, int]) -> float:
    return sum((log2(sizes[axis]) - log2(other[axis])) ** 2 for axis in sizes)
