"""Algebra: intersections, unions, complements and packing of masks, exact, as slices.

Two slices have one slice in common, because bounds and bands are intervals. A row's hidden keys are the gaps between
its visible intervals, so a complement is made of slices too. A union adds the part of a mask that the other one hides.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from longca.errors import MaskError
from longca.limits import MAX_DENSE_CELLS, check_pieces
from longca.masks.block_sparse import BlockSparseMask
from longca.masks.forms import pieces_to_slices
from longca.masks.intervals import IntervalPieces, ragged
from longca.masks.mask import Mask
from longca.masks.slice_mask import SliceMask
from longca.masks.slices import SliceArray, merge, trim

__all__ = ["complement", "intersection", "pack", "union"]

#: Pairs of slices that are intersected together.
_CHUNK = 2**20


def intersection(*masks: Mask) -> SliceMask:
    """The pairs that all of some masks show. The masks, at least one, have one size and one mask for all heads.

    Raises:
        MaskError: No masks, masks of different sizes, a mask whose heads differ, or too many slices.
    """
    return reduce(lambda a, b: _made(_common(a.array, b.array), a), _alike(masks))


def union(*masks: Mask) -> SliceMask:
    """The pairs that any of some masks shows.

    Masks may overlap. The arguments and errors are those of `intersection`.
    """

    def joined(a: SliceMask, b: SliceMask) -> SliceMask:
        return _made(np.concatenate([a.array, _common(b.array, _hidden(a))]), a)

    return reduce(joined, _alike(masks))


def complement(mask: Mask) -> SliceMask:
    """The pairs that a mask hides. MaskError if heads differ, or there are too many slices."""
    (one,) = _alike((mask,))
    return _made(_hidden(one), one)


def _alike(masks: tuple[Mask, ...]) -> list[SliceMask]:
    """The masks as masks of slices."""
    if not masks:
        raise MaskError("no masks were given; give at least one")
    for mask in masks:
        if not isinstance(mask, Mask):
            raise MaskError(f"{type(mask).__name__} is no mask; give masks, such as those of masks.build")
        if (mask.seqlen_q, mask.seqlen_k) != (masks[0].seqlen_q, masks[0].seqlen_k):
            raise MaskError(f"the {masks[0].label} and the {mask.label} differ in size; give masks of one size")
        if mask.heads > 1:
            raise MaskError(f"the {mask.heads} heads of this {mask.label} differ; take one of them with mask.head(i)")
    return [mask.head(0) for mask in masks]


def _made(slices: SliceArray, like: SliceMask) -> SliceMask:
    """A mask of disjoint, tight slices, with neighbours merged."""
    merged = merge(slices)
    check_pieces(len(merged), "slices", "Give masks of fewer slices")
    return SliceMask(merged, like.seqlen_q, like.seqlen_k)


def _common(a: SliceArray, b: SliceArray) -> SliceArray:
    """The slices that each slice of `a` has in common with each of `b`."""
    b = b[np.argsort(b[:, 0], kind="stable")]
    reach = np.maximum.accumulate(b[:, 1])
    # By rows, a slice can meet only those from the first that reaches it to the last that begins before its end.
    first = np.searchsorted(reach, a[:, 0], side="right")
    counts = np.maximum(np.searchsorted(b[:, 0], a[:, 1]) - first, 0)
    found = [np.empty((0, 6), np.int64)]
    parts = np.searchsorted(np.cumsum(counts), np.arange(_CHUNK, counts.sum(), _CHUNK))
    for start, stop in pairwise(np.unique(np.r_[0, parts, len(a)])):
        mine, theirs = ragged(first[start:stop], counts[start:stop])
        low, high = np.maximum(a[start + mine], b[theirs]), np.minimum(a[start + mine], b[theirs])
        both, shown = trim(np.where([True, False, True, False, True, False], low, high))
        found.append(both[shown])
        check_pieces(sum(map(len, found)), "slices", "Give masks of fewer slices")
    return np.concatenate(found)


def _hidden(mask: SliceMask) -> SliceArray:
    """The tight slices of the pairs that a mask hides: the gaps before, between and after the intervals of its rows."""
    pieces, segments = mask.row_pieces, np.arange(len(mask.row_pieces.heights))
    edge = np.zeros_like(segments)
    # Each gap begins at the left edge or where an interval stops, and ends where the next one starts or at the edge.
    segment = np.concatenate([segments, pieces.segment])
    after = np.argsort(segment, kind="stable")  # an edge comes before its segment's intervals
    before = np.argsort(np.concatenate([pieces.segment, segments]), kind="stable")  # and here behind them
    gaps = IntervalPieces(
        pieces.rows,
        segment[after],
        np.concatenate([edge, pieces.stop])[after],
        np.concatenate([pieces.start, edge + mask.seqlen_k])[before],
        np.concatenate([edge, pieces.stop_step])[after],
        np.concatenate([pieces.start_step, edge])[before],
    )
    return pieces_to_slices(gaps)


def pack(masks: Sequence[Mask]) -> Mask:
    """The mask of several sequences side by side, in their order. No sequence sees another one.

    Block-sparse masks stay block-sparse if all masks are. Their blocks then have one size only if every sequence but
    the last is a whole number of blocks.

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
