"""Packing: the masks of several sequences as one mask of all their tokens, one sequence after another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from longca.errors import MaskError
from longca.limits import MAX_DENSE_CELLS, check_pieces
from longca.masks.block_sparse import BlockSparseMask
from longca.masks.mask import Mask
from longca.masks.slice_mask import SliceMask

__all__ = ["pack"]


def pack(masks: Sequence[Mask]) -> Mask:
    """The mask of several sequences side by side. No sequence sees another one.

    Block-sparse masks stay block-sparse if all masks are. Their blocks then have one size only if every sequence but
    the last is a whole number of blocks.

    Args:
        masks: The masks of the sequences, in their order. At least one.

    Raises:
        MaskError: No masks, masks of different numbers of heads, or too many slices or blocks.
    """
    if not masks:
        raise MaskError("no masks were given to pack; give at least one")
    if len(masks) == 1:
        return masks[0]
    if len({mask.heads for mask in masks}) > 1:
        raise MaskError(
            f"the masks to pack have {', '.join(str(mask.heads) for mask in masks[:8])} heads; give masks of one number"
        )
    blocks = [mask for mask in masks if isinstance(mask, BlockSparseMask)]
    if len(blocks) == len(masks):
        return _pack_blocks(blocks)
    if masks[0].heads > 1:
        raise MaskError("masks whose heads differ are packed only with other block-sparse masks")
    parts = [mask.head(0).array for mask in masks]
    check_pieces(sum(map(len, parts)), "slices", "Pack fewer sequences")
    (q, seqlen_q), (k, seqlen_k) = (_starts([getattr(m, name) for m in masks]) for name in ("seqlen_q", "seqlen_k"))
    shifts = np.stack([q, q, k, k, k - q, k - q], axis=1)
    moved = [part + shift for part, shift in zip(parts, shifts, strict=True)]
    return SliceMask(np.concatenate(moved), seqlen_q, seqlen_k)


def _pack_blocks(masks: Sequence[BlockSparseMask]) -> BlockSparseMask:
    """The bitmaps along the diagonal of a larger one."""
    counts = [(len(mask.q_bounds) - 1, len(mask.k_bounds) - 1) for mask in masks]
    (rows, height), (columns, width) = _starts([q for q, _ in counts]), _starts([k for _, k in counts])
    if (cells := masks[0].heads * height * width) > MAX_DENSE_CELLS:
        raise MaskError(f"the packed bitmap would have {cells} blocks; at most {MAX_DENSE_CELLS} are allowed")
    kept = np.zeros((masks[0].heads, height, width), np.bool_)
    for mask, (q, k), row, column in zip(masks, counts, rows, columns, strict=True):
        for head in range(mask.heads):
            kept[head, row : row + q, column : column + k] = mask.kept(head)
    return BlockSparseMask(kept, _joined([m.q_bounds for m in masks]), _joined([m.k_bounds for m in masks]))


def _starts(lengths: Sequence[int]) -> tuple[NDArray[np.int64], int]:
    """Where each of some parts begins, and where the last one ends."""
    ends = np.cumsum(lengths, dtype=np.int64)
    return ends - lengths, int(ends[-1])


def _joined(bounds: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The bounds of all blocks, with the sequences one after another."""
    starts, _ = _starts([int(each[-1]) for each in bounds])
    return np.concatenate([[0], *(each[1:] + start for each, start in zip(bounds, starts, strict=True))])
