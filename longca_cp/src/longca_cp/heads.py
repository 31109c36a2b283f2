"""Heads: a tensor's heads, taken apart for the ranks that compute them and put together again.

Rank r of n has the r-th of n equal parts of the heads. Where there are fewer heads than ranks, which only KV heads can
be, each goes to n / H ranks next to one another, and what comes back is summed over these.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["each", "put_together", "take_apart"]


def each(heads: int, ranks: int) -> int:
    """Heads that one rank has."""
    return max(heads // ranks, 1)


def take_apart(x: Tensor, ranks: int) -> Tensor:
    """Every rank's heads: [ranks, T, H / ranks, D] of [T, H, D]. A view, except of heads that several ranks have."""
    heads = x.shape[1]
    if heads < ranks:
        x = x.repeat_interleave(ranks // heads, dim=1)
    return x.unflatten(1, (ranks, -1)).transpose(0, 1)


def put_together(parts: Tensor, into: Tensor, chunk: slice) -> None:
    """Puts what comes back from every rank into its place.

    Args:
        parts: Of each rank, some of its heads: [ranks, T, chunk, D].
        into: Of all heads: [T, H, D].
        chunk: Which of a rank's heads they are.
    """
    ranks, heads = parts.shape[0], into.shape[1]
    if heads < ranks:
        wide = torch.promote_types(parts.dtype, torch.float32)
        copies = parts.unflatten(0, (heads, -1))[:, :, :, 0]  # [H, ranks / H, T, D]
        into.copy_(copies.sum(1, dtype=wide).transpose(0, 1))
    else:
        into.unflatten(1, (ranks, -1)).transpose(0, 1)[:, :, chunk].copy_(parts)
