"""A mask as a `BlockMask` of FlexAttention, for code that calls FlexAttention itself."""

from __future__ import annotations

from functools import reduce
from operator import or_

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from longca.errors import MaskError
from longca.masks import BlockRuns, Mask
from longca.metadata.block_lists import BlockLists, block_lists
from longca.metadata.interval_tables import interval_tables

__all__ = ["to_block_mask"]


def to_block_mask(mask: Mask, device: torch.device | str, *, block_size: int = 128) -> BlockMask:
    """The `BlockMask` that shows the same pairs. It is exact, and no pair is evaluated.

    Its `mask_mod` looks up the intervals of a query's keys, so it holds two tensors of [intervals, queries] numbers.

    Args:
        mask: The mask, one for all heads.
        device: The device of the block mask.
        block_size: Tokens of a block, on both sides.

    Raises:
        MaskError: The heads of the mask differ.
    """
    if mask.heads > 1:
        raise MaskError(
            f"the {mask.heads} heads of this {mask.label} differ; convert them one by one with mask.head(i)"
        )
    where, one = torch.device(device), mask.head(0)
    intervals = [each.unbind() for each in interval_tables(one.row_pieces, where, max(1, one.row_pieces.max_intervals))]

    def mask_mod(_row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        ends = zip(*intervals, strict=True)
        return reduce(or_, [(start[query] <= key) & (key < stop[query]) for start, stop in ends])

    blocks = one.blocks(block_size, block_size)
    partial, full, partial_q, full_q = (
        tuple(x[None, None] for x in lists)
        for runs in (blocks.by_query, blocks.by_key)
        for lists in _lists(runs, where)
    )
    return BlockMask(
        seq_lengths=(mask.seqlen_q, mask.seqlen_k),
        kv_num_blocks=partial[0],
        kv_indices=partial[1],
        full_kv_num_blocks=full[0],
        full_kv_indices=full[1],
        q_num_blocks=partial_q[0],
        q_indices=partial_q[1],
        full_q_num_blocks=full_q[0],
        full_q_indices=full_q[1],
        BLOCK_SIZE=(block_size, block_size),
        mask_mod=mask_mod,
    )


def _lists(runs: BlockRuns, device: torch.device) -> tuple[BlockLists, BlockLists]:
    """The partial and the full blocks of each row of blocks, as wide as there are columns."""
    rows, width = runs.num_rows, runs.num_columns
    return block_lists(runs.partial, rows, device, width=width), block_lists(runs.full, rows, device, width=width)
