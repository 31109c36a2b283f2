"""Meshes: the ways to split ranks into the axes of a strategy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["mesh_text", "meshes"]


def meshes(ranks: int, axes: Sequence[str]) -> Iterator[dict[str, int]]:
    """The sizes of a strategy's axes that make up some ranks, none of them 1 where there are several axes.

    A strategy of several axes, one of which has a single rank, is another strategy with more to do.

    Args:
        ranks: Ranks, 2 or more.
        axes: The strategy's axes.
    """
    for sizes in _factors(ranks, len(axes)):
        if len(axes) == 1 or min(sizes) > 1:
            yield dict(zip(axes, sizes, strict=True))


def mesh_text(sizes: dict[str, int]) -> str:
    """A mesh as records have it: `ring=2,ulysses=4`."""
    return ",".join(f"{axis}={size}" for axis, size in sizes.items())


def _factors(number: int, count: int) -> Iterator[tuple[int, ...]]:
    if count == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            yield from ((first, *others) for others in _factors(number // first, count - 1))
