"""Block parts: the visible pairs between parts of a block-sparse mask's queries and parts of its keys, without cuts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from longca.masks.block_sparse import BlockSparseMask
from longca.masks.cutting import renumber

__all__ = ["part_areas"]

Ints = NDArray[np.int64]

#: Sums of integers below this number are exact in float64, whose products are much faster than those of integers.
_EXACT = 2**53


def part_areas(mask: BlockSparseMask, parts: Sequence[Ints], heads: range) -> Ints:
    """The visible pairs between each part as queries and each part as keys, exactly.

    Args:
        mask: The mask.
        parts: Ranges of tokens, ascending, disjoint and not empty: [parts][ranges, 2].
        heads: The heads to sum over.

    Returns:
        int64 [parts, parts]. The first index is the part of the queries.
    """
    fits = len(heads) * mask.seqlen_q * mask.seqlen_k < _EXACT
    kind = np.float64 if fits else np.int64
    queries, keys = (_tokens(bounds, parts).astype(kind) for bounds in (mask.q_bounds, mask.k_bounds))
    kept = sum((mask.kept(head).astype(np.int32) for head in heads), np.int32(0))
    areas = queries @ (np.asarray(kept).astype(kind) @ keys.T)
    found: Ints = (np.rint(areas) if fits else areas).astype(np.int64)
    return found


def _tokens(bounds: Ints, parts: Sequence[Ints]) -> Ints:
    """The tokens of each part in each block: [parts, blocks]."""
    counts = np.zeros((len(parts), len(bounds) - 1), np.int64)
    for row, ranges in zip(counts, parts, strict=True):
        if len(ranges):
            row[:] = np.diff(renumber(bounds, ranges))
    return counts
