"""Masks from a `BlockMask` of FlexAttention: its full blocks as they are, and its partial blocks evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from longca.errors import MaskError
from longca.masks.conversions import from_rows
from longca.masks.slice_mask import SliceMask

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

__all__ = ["from_block_mask"]

_A_PART = "the block mask is a part of another; give the whole one, and the row and the head to take"


def from_block_mask(
    block_mask: BlockMask, *, row: int | None = None, head: int | None = None, most: int = 2**14
) -> SliceMask:
    """The mask of a `BlockMask`, as `create_block_mask` makes it: [rows, heads]. It is exact.

    Only its partial blocks are evaluated, under `torch.vmap`, and only its lists of blocks are believed elsewhere. That
    is what FlexAttention computes.

    Args:
        block_mask: The block mask.
        row: The row of the batch. None for a block mask that all rows share.
        head: The head. None for a block mask that all heads share.
        most: The most slices to make.

    Raises:
        MaskError: No block mask, one of several rows or heads without the one to take, or more slices than `most`.
    """
    from torch.nn.attention.flex_attention import BlockMask

    if not isinstance(block_mask, BlockMask):
        raise MaskError(
            f"block_mask is a {type(block_mask).__name__}; give a BlockMask as create_block_mask makes it, and other "
            "matrices to masks.from_dense"
        )
    if block_mask.kv_num_blocks.ndim != 3:
        raise MaskError(_A_PART)
    at = []
    for name, index, size in zip(("row", "head"), (row, head), block_mask.kv_num_blocks.shape[:2], strict=True):
        if index is None and size > 1:
            raise MaskError(f"the block mask has {size} {name}s; give {name}=, and make a mask for each")
        if index is not None and (isinstance(index, bool) or not isinstance(index, int | np.integer)):
            raise MaskError(f"{name} is {index!r}; give an integer from 0")
        if size > 1 and not 0 <= (index or 0) < size:
            raise MaskError(f"{name} is {index}; the block mask has {size} {name}s, counted from 0")
        at.append(index or 0)
    queries, keys = (int(length) for length in block_mask.seq_lengths)
    return from_rows(_strips(block_mask, at[0], at[1], queries, keys), queries, keys, most)


def _strips(block_mask: BlockMask, row: int, head: int, queries: int, keys: int) -> Iterator[NDArray[np.bool_]]:
    """The boolean rows of each query block."""
    import torch

    height, width = (int(size) for size in block_mask.BLOCK_SIZE)
    partial = _blocks(block_mask.kv_num_blocks, block_mask.kv_indices, row, head)
    full = _blocks(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, row, head)
    device = block_mask.kv_num_blocks.device
    where = torch.tensor(row, device=device), torch.tensor(head, device=device)
    over_keys = torch.vmap(block_mask.mask_mod, in_dims=(None, None, None, 0))
    over_pairs = torch.vmap(over_keys, in_dims=(None, None, 0, None))
    for place in range(-(-queries // height)):
        first, last = place * height, min((place + 1) * height, queries)
        strip = np.zeros((last - first, keys), np.bool_)
        for block in full.get(place, ()):
            strip[:, block * width : (block + 1) * width] = True
        columns = [np.arange(block * width, min((block + 1) * width, keys)) for block in partial.get(place, ())]
        if columns:
            at = np.concatenate(columns)
            rows = torch.arange(first, last, device=device)
            try:
                shown = over_pairs(*where, rows, torch.from_numpy(at).to(device))
            except RuntimeError as error:
                if "sliced" in str(error):  # torch takes the function of a slice away, because its indices would differ
                    raise MaskError(_A_PART) from error
                raise
            strip[:, at] = shown.expand(len(strip), len(at)).cpu().numpy()
        yield strip


def _blocks(counts: Any, indices: Any, row: int, head: int) -> dict[int, list[int]]:
    """The key blocks of each query block. A block mask without full blocks has no such list."""
    if counts is None or indices is None:
        return {}
    at = min(row, counts.shape[0] - 1), min(head, counts.shape[1] - 1)
    found = zip(counts[at].tolist(), indices[at].tolist(), strict=True)
    return {place: blocks[:number] for place, (number, blocks) in enumerate(found)}
