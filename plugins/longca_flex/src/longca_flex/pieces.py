"""The pieces of the compiled functions: lists as a `BlockMask`, mask functions of intervals and blocks, and layouts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from longca_flex.lists import SideLists
from longca_flex.tile_lists import KeptBlocks
from longca_flex.tiles import LARGE

__all__ = [
    "BLOCK",
    "Bounds",
    "Seen",
    "as_block_mask",
    "capped_by",
    "heads_first",
    "in_intervals",
    "in_kept_blocks",
    "is_visible",
    "same_gradient",
    "same_score",
    "tokens_first",
]

#: Tokens of a block of queries and of keys. FlexAttention's tiles are made for this size.
BLOCK = LARGE

#: First key, and one past the last key, of each interval of each query, interval by interval: each int32 [Tq].
Bounds = tuple[Tensor, ...]

#: The keys that each token sees, as data.
Seen = Bounds | KeptBlocks


def as_block_mask(
    q: Tensor,
    k: Tensor,
    by_query: SideLists,
    by_key: SideLists | None,
    mask_mod: Callable[..., Tensor],
    block: int = BLOCK,
) -> BlockMask:
    """The lists as a `BlockMask` for q and k [1, H, T, D]. It serves only a forward if by_key is None."""
    return BlockMask(
        seq_lengths=(q.shape[2], k.shape[2]),
        kv_num_blocks=by_query.num_partial,
        kv_indices=by_query.partial,
        full_kv_num_blocks=by_query.num_full,
        full_kv_indices=by_query.full,
        q_num_blocks=by_key.num_partial if by_key else None,
        q_indices=by_key.partial if by_key else None,
        full_q_num_blocks=by_key.num_full if by_key else None,
        full_q_indices=by_key.full if by_key else None,
        BLOCK_SIZE=(block, block),
        mask_mod=mask_mod,
    )


def same_score(score: Tensor, *_where: Tensor) -> Tensor:
    """A score function that changes nothing."""
    return score


def same_gradient(_score: Tensor, *where_and_gradient: Tensor) -> list[Tensor | None]:
    """The gradient of `same_score` by the score. Its other arguments have none."""
    *where, gradient = where_and_gradient
    return [gradient, *(None for _ in where)]


def capped_by(softcap: float | None) -> tuple[Callable[..., Tensor], Callable[..., list[Tensor | None]]]:
    """A score function that caps scores, and its gradient by the score, or those that change nothing."""
    if softcap is None:
        return same_score, same_gradient

    def score(score: Tensor, *_where: Tensor) -> Tensor:
        return torch.tanh(score / softcap) * softcap

    def gradient(score: Tensor, *where_and_gradient: Tensor) -> list[Tensor | None]:
        *where, gradient = where_and_gradient
        return [gradient * (1 - torch.tanh(score / softcap).square()), *(None for _ in where)]

    return score, gradient


def in_intervals(_batch: Tensor, head: Tensor, q_index: Tensor, k_index: Tensor, *bounds: Tensor) -> Tensor:
    """A mask function of intervals."""
    return is_visible(head, q_index, k_index, bounds)


def in_kept_blocks(_batch: Tensor, head: Tensor, q_index: Tensor, k_index: Tensor, *kept: Tensor) -> Tensor:
    """A mask function of blocks."""
    return is_visible(head, q_index, k_index, KeptBlocks(*kept))


def is_visible(head: Tensor, q_index: Tensor, k_index: Tensor, seen: Seen) -> Tensor:
    """Whether a query sees a key: the key's block is kept, or the key is in one of the query's intervals."""
    if isinstance(seen, KeptBlocks):
        block = seen.blocks[k_index]
        byte = seen.bits[seen.heads[head] + seen.rows[q_index] + (block >> 3)].to(torch.int32)
        return ((byte << (block & 7)) & 128) != 0
    start, stop, *others = (bound[q_index] for bound in seen)
    found = (k_index >= start) & (k_index < stop)
    for start, stop in zip(others[::2], others[1::2], strict=True):
        found = found | ((k_index >= start) & (k_index < stop))
    return found


def heads_first(x: Tensor) -> Tensor:
    """[T / block, block, H, D] → [1, H, T, D], a view."""
    return x.flatten(0, 1).transpose(0, 1).unsqueeze(0)


def tokens_first(x: Tensor) -> Tensor:
    """[1, H, T, D] → [T, H, D], a view."""
    return x.squeeze(0).transpose(0, 1)
