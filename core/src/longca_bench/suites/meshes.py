"""Meshes of a suite: the ranks along each axis of a strategy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import prod

from longca.errors import RequestError
from longca.limits import shown

__all__ = ["MeshAxes", "check_mesh", "equal_mesh", "fitting_meshes", "mesh_of"]

#: (axis, ranks) pairs, the outermost axis first.
MeshAxes = tuple[tuple[str, int], ...]
_SIZE = "[1-9][0-9]{0,5}"


def check_mesh(text: str) -> str:
    """Returns a text that is a mesh of some axes."""
    if not re.fullmatch(rf"{_SIZE}(x{_SIZE})*|\w+={_SIZE}(,\w+={_SIZE})*", text):
        raise RequestError(f"{shown(text)} is no mesh such as '2x4' or 'ring=2,ulysses=4'")
    return text


def mesh_of(text: str, axes: Sequence[str]) -> MeshAxes:
    """A mesh from a text such as `2x4`, or `ulysses=2,ring=4` for axes in another order."""
    sizes = check_mesh(text).split("x")
    if "=" in text:
        pairs = [(name, int(size)) for name, size in (part.split("=") for part in text.split(","))]
    else:
        pairs = [(axis, int(size)) for axis, size in zip(axes, sizes, strict=False)] if len(sizes) == len(axes) else []
    if sorted(name for name, _ in pairs) != sorted(axes):
        raise RequestError(f"mesh {text!r} does not have a size for each of {', '.join(axes)}")
    return tuple(pairs)


def fitting_meshes(texts: Sequence[str], axes: Sequence[str], ranks: int) -> list[MeshAxes]:
    """The meshes of a suite that make up some ranks, or an equal mesh if none does."""
    listed = [mesh_of(text, axes) for text in texts]
    fitting = [mesh for mesh in listed if prod(size for _, size in mesh) == ranks]
    return fitting or [tuple(zip(axes, equal_mesh(ranks, len(axes)), strict=True))]


def equal_mesh(ranks: int, axes: int) -> tuple[int, ...]:
    """Ranks split into axes as equally as possible. The largest axis is the innermost, whose ranks share a host."""
    sizes = [1] * axes
    for prime in sorted(_primes(ranks), reverse=True):
        sizes[sizes.index(min(sizes))] *= prime
    return tuple(sorted(sizes))


def _primes(number: int) -> Iterator[int]:
    divisor = 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            yield divisor
            number //= divisor
        divisor += 1
    if number > 1:
        yield number
