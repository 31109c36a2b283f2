"""Algebra: intersections, unions and complements of masks, exact, as slices.

Two slices have one slice in common, because bounds and bands are intervals. A row's hidden keys are the gaps between
its visible intervals, so a complement is made of slices too. A union adds the part of a mask that the other one hides.
"""

from __future__ import annotations

from functools import reduce
from itertools import pairwise

import numpy as np

from longca.errors import MaskError
from longca.limits import check_pieces
from longca.masks.forms import pieces_to_slices
from longca.masks.intervals import IntervalPieces, ragged
from longca.masks.mask import Mask
from longca.masks.slice_mask import SliceMask
from longca.masks.slices import SliceArray, merge, trim

__all__ = ["complement", "intersection", "union"]

#: Pairs of slices that are intersected together.
_CHUNK = 2**20


def intersection(*masks: Mask) -> SliceMask:
    """The pairs that all of some masks show.

    Args:
        *masks: Masks of one size, each with one mask for all heads. At least one.

    Raises:
        MaskError: No masks, masks of different sizes, a mask whose heads differ, or too many slices.
    """
    return reduce(lambda a, b: _made(_common(a.array, b.array), a), _alike(masks))


def union(*masks: Mask) -> SliceMask:
    """The pairs that any of some masks shows. Masks may overlap.

    Args:
        *masks: As for `intersection`.

    Raises:
        MaskError: As for `intersection`.
    """

    def joined(a: SliceMask, b: SliceMask) -> SliceMask:
        return _made(np.concatenate([a.array, _common(b.array, _hidden(a))]), a)

    return reduce(joined, _alike(masks))


def complement(mask: Mask) -> SliceMask:
    """The pairs that a mask hides.

    Raises:
        MaskError: Heads differ, or there are too many slices.
    """
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
