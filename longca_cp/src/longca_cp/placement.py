"""Placement: the tokens that each part of the ranks holds. It moves nothing, and needs no devices.

A part is one rank of a ring, or the group of ranks that share a place on it. Parts hold the same number of tokens, or
one more. If there are fewer tokens than parts, some parts hold none. Positions are global. Ranges ascend, and
neighbouring ranges are joined.

To add a placement, write its function, add it to `PLACEMENTS`, and name it in `longca_cp`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from longca.errors import UnsupportedError
from longca.manifests.strategy import Ranges, SharedPlacement
from longca.masks import BlockSparseMask, Mask, SliceMask
from longca.plan_cache import PlanCache
from longca_cp.balanced import balanced
from longca_cp.block_placement import place_blocks
from longca_cp.ranges import even_bounds, union
from longca_cp.rows import Rows
from longca_cp.whole_documents import whole_documents

__all__ = ["PLACEMENTS", "document_lengths", "place"]

_Ints = NDArray[np.int64]

#: From the rows of the masks to place for and a number of parts to the ranges of each part.
_Deal = Callable[[Rows, int], tuple[Ranges, ...]]


def _contiguous(rows: Rows, parts: int) -> tuple[Ranges, ...]:
    bounds = even_bounds(rows.seqlen, parts)
    return tuple(((start, stop),) if start < stop else () for start, stop in pairwise(bounds))


def _zigzag(rows: Rows, parts: int) -> tuple[Ranges, ...]:
    return _zigzag_within(np.array([rows.seqlen]), parts)


def _zigzag_document(rows: Rows, parts: int) -> tuple[Ranges, ...]:
    return _zigzag_within(_common_documents(rows), parts)


def _whole_documents(rows: Rows, parts: int) -> tuple[Ranges, ...]:
    return whole_documents(rows, _common_documents(rows), parts)


#: The ways to place tokens on parts. `auto` takes the first one of several that are equally fast.
PLACEMENTS: dict[str, _Deal] = {
    # One stretch of tokens, which gives the simplest masks.
    "contiguous": _contiguous,
    # The r-th stretch of 2n from either end, for causal masks, or that within each document.
    # Source: zhuzilin/ring-flash-attention, and Llama 3 (arXiv 2407.21783, section 3.3.2).
    "zigzag": _zigzag,
    "zigzag_document": _zigzag_document,
    # Equally many visible pairs, in few stretches or short chunks, for any mask.
    "balanced": balanced,
    # Short documents whole on a part, as in Megatron-LM's dynamic context parallelism, with equal parts.
    "whole_documents": _whole_documents,
}


def _zigzag_within(lengths: _Ints, parts: int) -> tuple[Ranges, ...]:
    """Zigzag within each of some consecutive documents."""
    share, over = np.divmod(lengths, parts)
    # A document's remainder goes to the parts in turn, from the part where the document before it stopped.
    turn = (np.cumsum(over) - over) % parts
    sizes = share[:, None] + ((np.arange(parts) - turn[:, None]) % parts < over[:, None])
    early, late = sizes - sizes // 2, sizes // 2
    chunks = np.concatenate([early, late[:, ::-1]], axis=1)
    stops = np.cumsum(chunks).reshape(chunks.shape)
    starts = stops - chunks
    return tuple(
        union(starts[:, [part, -1 - part]].ravel(), stops[:, [part, -1 - part]].ravel()) for part in range(parts)
    )


def place(kind: str, mask: Mask, parts: int) -> tuple[Ranges, ...]:
    """The tokens of each part: ranges that ascend and are disjoint, [parts][ranges]. The latest answers are cached.

    A `SharedPlacement` places by the weighted sum of its masks. The mask has as many queries as keys.

    Raises:
        UnsupportedError: A mask has no documents, for a placement of documents. Block-sparse masks have fewer blocks
            in common than parts.
    """
    weighed = kind.weighed if isinstance(kind, SharedPlacement) else ((mask, 1.0),)
    about = str(kind), parts, tuple((one.key, weight) for one, weight in weighed)
    return _PLACED.get(weighed[0][0], about, lambda: _dealt(kind, weighed, parts))


def _dealt(kind: str, weighed: Sequence[tuple[Mask, float]], parts: int) -> tuple[Ranges, ...]:
    if any(isinstance(one, BlockSparseMask) for one, _ in weighed):
        return place_blocks(kind, weighed, parts)
    return PLACEMENTS[kind](Rows(weighed), parts)


#: The latest answers.
_PLACED: PlanCache[tuple[Ranges, ...]] = PlanCache(16)


def _common_documents(rows: Rows) -> NDArray[np.int64]:
    """The lengths of documents whose bounds are those of documents of every mask."""
    stops = [np.cumsum(document_lengths(mask)) for mask, _ in rows.weighed]
    common = stops[0]
    for others in stops[1:]:
        common = np.intersect1d(common, others)
    if len(common) < 2 <= min(map(len, stops)):
        labels = ", ".join(dict.fromkeys(mask.label for mask, _ in rows.weighed))
        raise UnsupportedError(
            f"the documents of these masks have no bound in common: {labels}. Place them by contiguous, zigzag or "
            "balanced."
        )
    return np.diff(common, prepend=0)


def document_lengths(mask: Mask) -> NDArray[np.int64]:
    """The lengths of a mask's documents, in order: int64 [documents].

    A mask that was built with the factor `documents` has them there. For other masks they are derived: the tokens of a
    document see no token outside it, and no token outside sees them.
    """
    if "documents" in mask.factors:
        return np.array(mask.factors["documents"], np.int64)
    if isinstance(mask, SliceMask):
        bounds = _bounds(mask)
        if len(bounds) > 2:
            return np.diff(bounds)
    raise UnsupportedError(
        f"this {mask.label} has no documents to place tokens within. Place them by contiguous, zigzag or balanced."
    )


def _bounds(mask: SliceMask) -> NDArray[np.int64]:
    """The positions at which documents begin and end. No slice has tokens on both sides of one."""
    q0, q1, k0, k1 = mask.array.T[:4]
    first, last = np.minimum(q0, k0), np.maximum(q1, k1)
    order = np.argsort(first, kind="stable")
    first, reach = first[order], np.maximum.accumulate(last[order])
    apart = first[1:] >= reach[:-1]
    # Tokens between documents, which neither see nor are seen, are documents too.
    return np.unique(np.r_[0, first[1:][apart], reach[:-1][apart], first[:1], reach[-1:], mask.seqlen_q])
