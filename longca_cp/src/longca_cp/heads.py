"""The heads of a tensor that ranks share: the r-th of n equal parts is of rank r, or one head is of several ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["chunk_of", "each", "heads_of", "put_chunk", "put_together", "split_heads", "split_kv", "take_apart"]


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


def take_apart(x: Tensor, ranks: int) -> Tensor:
    """Every rank's heads: [ranks, T, H / ranks, D] of [T, H, D]. It is a view, unless several ranks have one head."""
    heads = x.shape[1]
    if heads < ranks:
        x = x.repeat_interleave(ranks // heads, dim=1)
    return x.unflatten(1, (ranks, -1)).transpose(0, 1)


def put_together(parts: Tensor, into: Tensor, chunk: slice) -> None:
    """Puts one chunk of the heads of every rank, [ranks, T, chunk, D], into its place in [T, H, D]."""
    ranks, heads = parts.shape[0], into.shape[1]
    if heads < ranks:
        wide = torch.promote_types(parts.dtype, torch.float32)
        copies = parts.unflatten(0, (heads, -1))[:, :, :, 0]  # [H, ranks / H, T, D]
        into.copy_(copies.sum(1, dtype=wide).transpose(0, 1))
    else:
        into.unflatten(1, (ranks, -1)).transpose(0, 1)[:, :, chunk].copy_(parts)


def put_chunk(received: Tensor, into: Sequence[Tensor], ranks: int, chunk: int, chunks: int) -> None:
    """Puts a chunk of every rank's heads, [ranks, Tl, ...], into the buffers, whose heads lie side by side there."""
    sizes = [each(x.shape[1], ranks) for x in into]
    shapes = [(size // chunks, x.shape[2]) for size, x in zip(sizes, into, strict=True)]
    for part, x, size in zip(split_heads(received.flatten(2), shapes), into, sizes, strict=True):
        put_together(part, x, chunk_of(size, chunk, chunks))


def split_heads(rows: Tensor, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """The tensors whose heads lie side by side in rows [..., sum of H · D], given (H, D) of each: [..., H, D]."""
    parts = rows.split([heads * dim for heads, dim in shapes], dim=-1)
    return [part.unflatten(-1, shape) for part, shape in zip(parts, shapes, strict=True)]


def split_kv(buffer: Tensor, tokens: int, shapes: tuple[torch.Size, torch.Size]) -> tuple[Tensor, Tensor]:
    """Keys [T, H, D] and values [T, H, Dv] that lie one after another in a buffer, given the shapes of a token's."""
    first, second = (tokens * shape.numel() for shape in shapes)
    k, v = buffer[: first + second].split([first, second])
    return k.view(tokens, *shapes[0]), v.view(tokens, *shapes[1])
