"""Placement: the tokens that each part of the ranks holds. It moves nothing, and needs no devices.

A part is one rank of a ring, or the group of ranks that share a place on it. Parts hold the same number of tokens, or
one more. If there are fewer tokens than parts, some parts hold none. Positions are global. Ranges ascend, and
neighbouring ranges are joined.

To add a placement, write its function and add a member to `Placement`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from longca.errors import RequestError, UnknownNameError, UnsupportedError
from longca.manifests.strategy import Ranges
from longca.masks import BlockSparseMask, Mask, SliceMask
from longca.plan_cache import PlanCache
from longca_cp.balanced import balanced
from longca_cp.block_placement import place_blocks
from longca_cp.ranges import even_bounds, union

__all__ = ["Placement", "document_lengths", "place"]

_Ints = NDArray[np.int64]

#: From a mask and a number of parts to the ranges of each part.
_Deal = Callable[[Mask, int], tuple[Ranges, ...]]


def _contiguous(mask: Mask, parts: int) -> tuple[Ranges, ...]:
    bounds = even_bounds(mask.seqlen_q, parts)
    return tuple(((start, stop),) if start < stop else () for start, stop in pairwise(bounds))


def _zigzag(mask: Mask, parts: int) -> tuple[Ranges, ...]:
    return _zigzag_within(np.array([mask.seqlen_q]), parts)


def _zigzag_document(mask: Mask, parts: int) -> tuple[Ranges, ...]:
    return _zigzag_within(document_lengths(mask), parts)


class Placement(StrEnum):
    """The ways to place tokens on parts. `auto` takes the first one of several that are equally fast.

    Attributes:
        meaning: The tokens of a part, in words.
        deal: The function from a mask and a number of parts to the ranges of each part.
    """

    meaning: str
    deal: _Deal

    def __new__(cls, name: str, meaning: str, deal: _Deal) -> Placement:
        """A member, which is its name."""
        member = str.__new__(cls, name)
        member._value_, member.meaning, member.deal = name, meaning, deal
        return member

    CONTIGUOUS = "contiguous", "one stretch of tokens, which gives the simplest masks", _contiguous
    # Source: zhuzilin/ring-flash-attention, and Llama 3 (arXiv 2407.21783, section 3.3.2).
    ZIGZAG = "zigzag", "the r-th stretch of 2n from either end, for causal masks", _zigzag
    ZIGZAG_DOCUMENT = "zigzag_document", "zigzag within each document, for causal masks of documents", _zigzag_document
    BALANCED = "balanced", "short chunks, dealt by the visible pairs of their rows, for any mask", balanced


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
    """The tokens of each part. The latest answers are cached, for strategies that place alike.

    Args:
        kind: A placement's name.
        mask: The mask of all tokens, with as many queries as keys.
        parts: Number of parts.

    Returns:
        (start, stop) of each part's tokens, ascending and disjoint: [parts][ranges]. Every token is in one part.

    Raises:
        UnknownNameError: There is no such placement.
        RequestError: Fewer than one part.
        UnsupportedError: The mask has no documents, for a placement within documents. Or fewer blocks than parts.
    """
    if kind not in tuple(Placement):
        raise UnknownNameError("placement", kind, Placement)
    if parts < 1:
        raise RequestError(f"tokens were to be placed on {parts} parts; give at least 1")
    return _PLACED.get(mask, (str(kind), parts), lambda: _dealt(kind, mask, parts))


def _dealt(kind: str, mask: Mask, parts: int) -> tuple[Ranges, ...]:
    if isinstance(mask, BlockSparseMask):
        return place_blocks(kind, mask, parts)
    return Placement(kind).deal(mask, parts)  # type: ignore[call-arg]


#: The latest answers.
_PLACED: PlanCache[tuple[Ranges, ...]] = PlanCache(8)


def document_lengths(mask: Mask) -> NDArray[np.int64]:
    """The lengths of a mask's documents, in order: int64 [documents].

    A mask that was built with the factor `documents` has them there. For other masks they are derived: the tokens of a
    document see no token outside it, and no token outside sees them.

    Raises:
        UnsupportedError: The mask has no documents.
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
