"""Lists of tiles and bits of blocks, as FlexAttention's kernels read them, from a block-sparse mask.

If each tile lies within one block, every listed tile is fully visible, and the bits are never read.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from longca.masks import BlockSparseMask
from longca.metadata.block_lists import BlockLists
from longca.metadata.kept_blocks import kept_lists, tile_lists
from longca_flex.lists import LEAST, SideLists
from longca_flex.tiles import tile_size

__all__ = ["KeptBlocks", "kept_bits", "tile_side_lists"]


class KeptBlocks(NamedTuple):
    """The kept blocks as data: one bit a block, as in `numpy.packbits`, and the position of each token's bits.

    Positions are sums of offsets, because a compiled mask function does not know the sizes of its tensors.

    Attributes:
        heads: Offset of each query head's bits: int32 [Hq].
        rows: Offset of each query's bits within its head: int32 [Tq].
        blocks: Index of each key's bit within its row: int32 [Tk].
        bits: The bits of all heads: uint8 [bytes].
    """

    heads: Tensor
    rows: Tensor
    blocks: Tensor
    bits: Tensor


def kept_bits(mask: BlockSparseMask, heads_q: int, device: torch.device) -> KeptBlocks:
    """A mask's bits on a device, for `heads_q` query heads."""
    assert mask.bits.size < 2**31, "offsets are of 32 bits, as `supports_mask` of this plugin says"
    _, num_rows, row_bytes = mask.bits.shape
    heads = np.arange(mask.heads, dtype=np.int32).repeat(heads_q // mask.heads) * np.int32(num_rows * row_bytes)
    rows = _blocks_of_tokens(mask.q_bounds) * np.int32(row_bytes)
    bits = np.pad(mask.bits.ravel(), (0, max(0, LEAST - mask.bits.size)))
    arrays = (heads, rows, _blocks_of_tokens(mask.k_bounds), bits)
    made = KeptBlocks(*(torch.from_numpy(x).to(device) for x in arrays))
    torch._dynamo.mark_static(made.heads, 0)
    return made


def tile_side_lists(mask: BlockSparseMask, heads_q: int, device: torch.device, *, by_key: bool) -> SideLists:
    """The tiles that each row of tiles visits, in tiles of `tile_size`.

    Args:
        mask: The mask.
        heads_q: Number of query heads. Each has its own lists unless all share the mask.
        device: The device of the lists.
        by_key: True lists the query tiles of each key tile. False lists the key tiles of each query tile.
    """
    tile, partial = tile_size(mask), None
    if mask.block_size == tile:
        full = kept_lists(mask, device, by_key=by_key)
    else:
        partial, full = tile_lists(mask, tile, tile, device, by_key=by_key)
    if mask.block_size is not None and mask.block_size % tile == 0:
        full = _sized(_for_query_heads(full, heads_q), full.columns.shape[2])
        # Both lists must have the same strides (see `side_lists`), so the empty list borrows the other's memory.
        partial = BlockLists(torch.zeros_like(full.counts), full.columns)
    else:
        assert partial is not None
        width = max(partial.columns.shape[2], full.columns.shape[2])
        partial, full = (_sized(_for_query_heads(lists, heads_q), width) for lists in (partial, full))
    return SideLists(*(_batched(x) for x in (*partial, *full)))


def _for_query_heads(lists: BlockLists, heads_q: int) -> BlockLists:
    """One list for each query head, or one for all. FlexAttention takes a head's index modulo the number of lists."""
    heads = len(lists.counts)
    if heads in (1, heads_q):
        return lists
    return BlockLists(*(x.repeat_interleave(heads_q // heads, dim=0) for x in lists))


def _sized(lists: BlockLists, width: int) -> BlockLists:
    """Lists with at least as many columns and rows as needed to avoid a size of 1."""
    counts, columns = lists
    rows, more = counts.shape[1], max(width, LEAST) - columns.shape[2]
    below = max(rows, LEAST) - rows
    return BlockLists(pad(counts, (0, below)), pad(columns, (0, more, 0, below))) if below or more else lists


def _batched(x: Tensor) -> Tensor:
    """[H, ..] → [1, H, ..], contiguous, in the same memory. A view would make the compiler ask for its base."""
    x = x.contiguous()
    batched = x.new_empty(0).set_(x.untyped_storage(), x.storage_offset(), (1, *x.shape), (x.numel(), *x.stride()))
    torch._dynamo.mark_static(batched, 1)
    return batched


def _blocks_of_tokens(bounds: NDArray[np.int64]) -> NDArray[np.int32]:
    return np.repeat(np.arange(len(bounds) - 1, dtype=np.int32), np.diff(bounds))
