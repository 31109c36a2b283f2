"""The heads of a tensor that ranks share: the r-th of n equal parts is of rank r, or one head is of several ranks."""

from __future__ import annotations

from torch import Tensor

__all__ = ["chunk_of", "each", "heads_of"]


def each(heads: int, ranks: int) -> int:
    """Heads that one rank has."""
    return max(heads // ranks, 1)


def chunk_of(heads: int, chunk: int, chunks: int) -> slice:
    """The place of a chunk among the heads of one rank."""
    return slice(heads * chunk // chunks, heads * (chunk + 1) // chunks)


def heads_of(x: Tensor, rank: int, ranks: int, chunks: int = 1) -> Tensor:
    """One rank's heads in chunks: the view [chunks, T, heads of a chunk, D] of [T, H, D]."""
    first = rank * x.shape[1] // ranks
    return x[:, first : first + each(x.shape[1], ranks)].unflatten(1, (chunks, -1)).transpose(0, 1)
