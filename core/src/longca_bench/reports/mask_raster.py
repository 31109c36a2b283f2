"""Rasters: the exact share of visible pairs in each cell of a picture, without a dense matrix.

A cell is a square of tokens. Its visible pairs are a sum over the affine pieces of the row intervals, or over the
bitmap of a block-sparse mask. The work is O(pieces × columns of cells) for any sequence length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from longca.masks import BlockSparseMask, Mask, SliceMask

__all__ = ["Raster", "count_visible", "picture_block", "rasterize"]

Ints = NDArray[np.int64]

#: The fewest and the most blocks a side that can be seen in a picture of column width.
FEWEST_BLOCKS, MOST_BLOCKS = 4, 64

_PIECES_AT_A_TIME, _BLOCK_ROWS_AT_A_TIME = 4096, 256


@dataclass(frozen=True, eq=False)
class Raster:
    """A mask in cells of `cell` × `cell` tokens. The last cells may be smaller.

    `shown` is the share of visible pairs: float64 [rows, columns]. `state` is that of the cell's block of `block`
    tokens: 0 for empty, 1 for partial, 2 for full. Without blocks, a cell with a visible pair has 2.
    """

    cell: int
    shown: NDArray[np.float64]
    block: int | None
    state: NDArray[np.int8]


def rasterize(mask: Mask, most: int, block: int | None = None, head: int = 0) -> Raster:
    """One head of a mask, not empty, as at most `most` cells a side. There are fewer if cells must divide blocks."""
    longest = max(mask.seqlen_q, mask.seqlen_k)
    cell = -(-longest // most)
    if block is not None:
        cell = next(size for size in range(min(cell, block), block + 1) if block % size == 0)
    q_edges, k_edges = _edges(mask.seqlen_q, cell), _edges(mask.seqlen_k, cell)
    shown = _shares(mask, head, q_edges, k_edges)
    if block is None:
        return Raster(cell, shown, None, np.where(shown > 0, 2, 0).astype(np.int8))
    blocks = _shares(mask, head, _edges(mask.seqlen_q, block), _edges(mask.seqlen_k, block))
    states = np.where(blocks == 0, 0, np.where(blocks == 1, 2, 1)).astype(np.int8)
    return Raster(cell, shown, block, states[np.ix_(q_edges[:-1] // block, k_edges[:-1] // block)])


def picture_block(seqlen: int, asked: int | None = None) -> int | None:
    """Tokens a block in a picture of `seqlen` tokens, or None if blocks would not be seen.

    The default is 128. Shorter sequences get the power of two with eight to sixteen blocks a side.
    """
    block = asked if asked is not None else min(128, 2 ** max(0, (seqlen // 8).bit_length() - 1))
    return block if block > 1 and FEWEST_BLOCKS <= -(-seqlen // block) <= MOST_BLOCKS else None


def count_visible(mask: Mask, q_edges: Ints, k_edges: Ints, head: int = 0) -> Ints:
    """Visible pairs of one head between ascending edges from 0 to the length: int64 [q_edges − 1, k_edges − 1]."""
    if isinstance(mask, BlockSparseMask):
        return _count_in_bitmap(mask, head, q_edges, k_edges)
    return _count_in_pieces(mask.head(head), q_edges, k_edges)


def _count_in_pieces(mask: SliceMask, q_edges: Ints, k_edges: Ints) -> Ints:
    out = np.zeros((len(q_edges) - 1, len(k_edges) - 1), np.int64)
    pieces = mask.row_pieces.split_rows(q_edges)
    row = np.searchsorted(q_edges, pieces.rows[pieces.segment], side="right") - 1
    height = pieces.heights[pieces.segment]
    for first in range(0, len(row), _PIECES_AT_A_TIME):
        part = slice(first, first + _PIECES_AT_A_TIME)
        seen = _keys_before(pieces.stop[part], pieces.stop_step[part], height[part], k_edges)
        seen -= _keys_before(pieces.start[part], pieces.start_step[part], height[part], k_edges)
        heads = np.flatnonzero(np.diff(row[part], prepend=-1))
        out[row[part][heads]] += np.add.reduceat(seen, heads, axis=0)
    return out


def _keys_before(end: Ints, step: Ints, height: Ints, k_edges: Ints) -> Ints:
    """Keys of each column before an interval's end, summed over the rows of its piece: [pieces, columns].

    max(x − E, 0) keys lie between edge E and x. If the end moves, x runs through [end, end + height), and the sum is a
    difference of triangular numbers.
    """
    beyond = np.maximum(end[:, None] - k_edges, 0)
    moved = np.maximum((end + height)[:, None] - k_edges, 0)
    moving = moved * (moved - 1) // 2 - beyond * (beyond - 1) // 2
    total = np.where(step[:, None] == 1, moving, height[:, None] * beyond)
    return total[:, :-1] - total[:, 1:]


def _count_in_bitmap(mask: BlockSparseMask, head: int, q_edges: Ints, k_edges: Ints) -> Ints:
    kept = mask.kept(head)
    by_block_row = [
        _weigh(kept[first : first + _BLOCK_ROWS_AT_A_TIME].astype(np.int64), mask.k_bounds, k_edges)
        for first in range(0, len(kept), _BLOCK_ROWS_AT_A_TIME)
    ]
    return _weigh(np.concatenate(by_block_row).T, mask.q_bounds, q_edges).T


def _weigh(counts: Ints, bounds: Ints, edges: Ints) -> Ints:
    """From counts a token of each block to counts of each cell: [rows, blocks] → [rows, cells]."""
    before = np.cumsum(np.pad(counts * np.diff(bounds), ((0, 0), (1, 0))), axis=1)
    block = np.minimum(np.searchsorted(bounds, edges, side="right") - 1, counts.shape[1] - 1)
    return np.diff(before[:, block] + counts[:, block] * (edges - bounds[block]), axis=1)


def _shares(mask: Mask, head: int, q_edges: Ints, k_edges: Ints) -> NDArray[np.float64]:
    return count_visible(mask, q_edges, k_edges, head) / np.outer(np.diff(q_edges), np.diff(k_edges))


def _edges(seqlen: int, cell: int) -> Ints:
    return np.r_[np.arange(0, seqlen, cell), seqlen]
