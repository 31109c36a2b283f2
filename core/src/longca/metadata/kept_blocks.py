"""Block-sparse masks on the device: the kept blocks, lists of them, and rows token by token, made from the mask's bits.

The host sends the bits: 34 MB for 64 heads of 128 K tokens in blocks of 64. The device makes the lists from them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca.masks import BlockSparseMask
from longca.masks.bounds import tile_spans
from longca.metadata.block_lists import BlockLists

__all__ = ["VisibleRows", "head_slices", "kept_blocks", "kept_lists", "tile_lists", "unpacked"]

_CHUNK = 2**25  # blocks of several heads that are expanded together, to save memory
_WORD = 8  # keys in an int64


def kept_blocks(mask: BlockSparseMask, device: torch.device) -> Tensor:
    """Whether each query block of each head sees each key block: bool [mask heads, query blocks, key blocks]."""
    bits = _on(mask.bits, device)
    return unpacked(bits, len(mask.k_bounds) - 1)


def kept_lists(mask: BlockSparseMask, device: torch.device, *, by_key: bool = False) -> BlockLists:
    """Lists of the key blocks that each query block of each head sees, ascending. `by_key` lists query blocks instead.

    Counts are int32 [mask heads, rows], and columns int32 [mask heads, rows, width], 0 past a row's count. The width is
    the largest count, at least 1.
    """
    shape = len(mask.q_bounds) - 1, len(mask.k_bounds) - 1
    bits = _on(mask.bits, device)
    return _joined([_lists(_side(unpacked(bits[heads], shape[1]), by_key)) for heads in head_slices(mask.heads, shape)])


def tile_lists(
    mask: BlockSparseMask, block_q: int, block_k: int, device: torch.device, *, by_key: bool = False
) -> tuple[BlockLists, BlockLists]:
    """Lists of tiles of any size over the mask's blocks: the partly and the fully visible ones, in the form of
    `kept_lists`.

    A shorter tile at the end of the sequence counts by its own tokens, as in `longca.masks.blocks`.
    """
    spans_q, spans_k = (
        torch.from_numpy(tile_spans(bounds, tile)).to(device).view(-1, 2).T
        for bounds, tile in ((mask.q_bounds, block_q), (mask.k_bounds, block_k))
    )
    shape = len(mask.q_bounds) - 1, len(mask.k_bounds) - 1
    tiles = spans_q.shape[1], spans_k.shape[1]
    bits = _on(mask.bits, device)
    partial, full = [], []
    for heads in head_slices(mask.heads, tuple(map(max, shape, tiles))):
        touched, covered = _touched(unpacked(bits[heads], shape[1]), spans_q, spans_k)
        partial.append(_lists(_side(touched & ~covered, by_key)))
        full.append(_lists(_side(covered, by_key)))
    return _joined(partial), _joined(full)


def unpacked(bits: Tensor, columns: int) -> Tensor:
    """The booleans of `numpy.packbits`: uint8 [.., rows, bytes] → bool [.., rows, columns]."""
    places = torch.arange(7, -1, -1, dtype=torch.uint8, device=bits.device)
    return (bits[..., None] >> places & 1).flatten(-2)[..., :columns].bool()


def _on(bits: NDArray[np.uint8], device: torch.device) -> Tensor:
    return torch.from_numpy(bits.copy()).to(device)  # PyTorch warns of read-only memory


def head_slices(heads: int, shape: tuple[int, ...], most: int = _CHUNK) -> Iterator[slice]:
    """Slices of heads with at most `most` blocks of [rows, columns] together, or of one head."""
    step = max(1, most // max(1, shape[0] * shape[1]))
    yield from (slice(first, first + step) for first in range(0, heads, step))


def _side(kept: Tensor, by_key: bool) -> Tensor:
    return kept.mT if by_key else kept


def _lists(kept: Tensor) -> BlockLists:
    """The columns of each row [heads, rows, columns] that are kept."""
    counts = kept.sum(-1, dtype=torch.int32)
    width = max(1, int(counts.max())) if counts.numel() else 1
    # Each kept column goes to the next entry of its row's list, and all others go to a spare column.
    place = torch.where(kept, kept.cumsum(-1, dtype=torch.int32) - 1, width)
    columns = torch.zeros((*kept.shape[:2], width + 1), dtype=torch.int32, device=kept.device)
    every = torch.arange(kept.shape[2], dtype=torch.int32, device=kept.device).expand(kept.shape)
    columns.scatter_(-1, place.long(), every)
    return BlockLists(counts, columns[..., :width].masked_fill_(_beyond(counts, width), 0))


def _beyond(counts: Tensor, width: int) -> Tensor:
    return torch.arange(width, device=counts.device) >= counts[..., None]


def _joined(parts: list[BlockLists]) -> BlockLists:
    """The lists of several groups of heads in one."""
    if len(parts) == 1:
        return BlockLists(parts[0].counts, parts[0].columns.contiguous())
    width = max(part.columns.shape[-1] for part in parts)
    padded = [torch.nn.functional.pad(part.columns, (0, width - part.columns.shape[-1])) for part in parts]
    return BlockLists(torch.cat([part.counts for part in parts]), torch.cat(padded))


def _touched(kept: Tensor, spans_q: Tensor, spans_k: Tensor) -> tuple[Tensor, Tensor]:
    """Whether each tile has any kept block, and whether all of its blocks are kept: bool [heads, tiles, tiles]."""
    sums = torch.nn.functional.pad(kept.cumsum(1, dtype=torch.int32).cumsum(2, dtype=torch.int32), (1, 0, 1, 0))
    rows = sums[:, spans_q[1]] - sums[:, spans_q[0]]
    inside = rows[:, :, spans_k[1]] - rows[:, :, spans_k[0]]
    most = (spans_q[1] - spans_q[0])[:, None] * (spans_k[1] - spans_k[0])
    return inside > 0, inside == most


class VisibleRows:
    """The rows of a block-sparse mask on a device."""

    def __init__(self, mask: BlockSparseMask, device: torch.device) -> None:
        self._q_bounds = mask.q_bounds
        self._bits = _on(mask.bits, device)
        self._keys, self._key_blocks = mask.seqlen_k, len(mask.k_bounds) - 1
        padding = -mask.seqlen_k % _WORD
        self._block_of_key = torch.nn.functional.pad(_owners(np.diff(mask.k_bounds), device), (0, padding))

    def __call__(self, first: int, last: int, keys: slice | Tensor = slice(None)) -> Tensor:
        """Whether the queries [first, last) see some keys: bool [mask heads, queries, keys].

        The keys are int64 positions, or a slice of all keys.
        """
        begin = int(np.searchsorted(self._q_bounds, first, side="right")) - 1
        end = int(np.searchsorted(self._q_bounds, last))
        queries = np.diff(self._q_bounds[begin : end + 1].clip(first, last))
        kept = unpacked(self._bits[:, begin:end], self._key_blocks)
        if not self._keys:
            return kept.new_empty((len(kept), last - first, 0))
        if isinstance(keys, Tensor):
            columns = kept.index_select(2, self._block_of_key[keys])
            return columns.index_select(1, _owners(queries, kept.device))
        words = kept[:, :, self._block_of_key].view(torch.int64)  # rows are copied eight keys at a time, not one by one
        return words.index_select(1, _owners(queries, kept.device)).view(torch.bool)[..., : self._keys]


def _owners(sizes: NDArray[np.int64], device: torch.device) -> Tensor:
    """The block of each token, from the blocks' sizes: int64 [tokens]."""
    return torch.from_numpy(np.arange(len(sizes)).repeat(sizes)).to(device)
