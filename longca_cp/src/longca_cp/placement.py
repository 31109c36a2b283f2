"""Placement: which tokens each part of the ranks holds. It moves nothing, and needs no devices.

A part is one rank of a ring, or the group of ranks that share a place on it. Parts hold equally many tokens, or one
more; where there are fewer tokens than parts, some hold none. Positions are global; ranges ascend, neighbours joined.

- `contiguous`: one stretch each, in order. The longest runs of keys, and so the simplest masks; causal masks leave the
  first part with little to do.
- `zigzag`: 2n stretches for n parts, the r-th from either end to part r. Causal masks are shared out exactly.
  Source: zhuzilin/ring-flash-attention, and Llama 3 (arXiv 2407.21783, section 3.3.2).
- `zigzag_document`: the same within each document; for causal masks of documents.
- `balanced`: short chunks dealt by the area of their rows in the mask, for any mask; `longca_cp.balanced`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from longca.errors import RequestError, UnknownNameError
from longca.manifests.strategy import Ranges
from longca.masks import Mask
from longca_cp.balanced import balanced
from longca_cp.documents import document_lengths
from longca_cp.ranges import even_bounds, union

__all__ = ["PLACEMENTS", "contiguous", "place", "zigzag", "zigzag_document"]

_Ints = NDArray[np.int64]


def contiguous(mask: Mask, parts: int) -> tuple[Ranges, ...]:
    """Consecutive stretches, the first ones longer by one token where the parts do not divide them."""
    return tuple(
        ((start, stop),) if start < stop else () for start, stop in pairwise(even_bounds(mask.seqlen_q, parts))
    )


def zigzag(mask: Mask, parts: int) -> tuple[Ranges, ...]:
    """Of 2 · parts stretches the r-th from either end to part r."""
    return _zigzag(np.array([mask.seqlen_q]), parts)


def zigzag_document(mask: Mask, parts: int) -> tuple[Ranges, ...]:
    """Zigzag within each document.

    Raises:
        UnsupportedError: The mask has no documents.
    """
    return _zigzag(document_lengths(mask), parts)


def _zigzag(lengths: _Ints, parts: int) -> tuple[Ranges, ...]:
    """Zigzag within each of some consecutive documents."""
    share, over = np.divmod(lengths, parts)
    # What a document has over goes to the parts in turn, going on where the document before it stopped.
    turn = (np.cumsum(over) - over) % parts
    sizes = share[:, None] + ((np.arange(parts) - turn[:, None]) % parts < over[:, None])
    early, late = sizes - sizes // 2, sizes // 2
    chunks = np.concatenate([early, late[:, ::-1]], axis=1)
    stops = np.cumsum(chunks).reshape(chunks.shape)
    starts = stops - chunks
    return tuple(
        union(starts[:, [part, -1 - part]].ravel(), stops[:, [part, -1 - part]].ravel()) for part in range(parts)
    )


#: Every placement by its name.
PLACEMENTS: Mapping[str, Callable[[Mask, int], tuple[Ranges, ...]]] = MappingProxyType(
    {"contiguous": contiguous, "zigzag": zigzag, "zigzag_document": zigzag_document, "balanced": balanced}
)


def place(kind: str, mask: Mask, parts: int) -> tuple[Ranges, ...]:
    """The tokens of each part.

    Args:
        kind: A placement's name.
        mask: The mask of all tokens, with as many queries as keys.
        parts: How many parts hold them.

    Returns:
        (start, stop) of each part's tokens, ascending and disjoint; together every token once: [parts][ranges].

    Raises:
        UnknownNameError: There is no such placement.
        RequestError: Fewer than one part.
        UnsupportedError: The mask has no documents, for a placement within them.
    """
    if kind not in PLACEMENTS:
        raise UnknownNameError("placement", kind, PLACEMENTS)
    if parts < 1:
        raise RequestError(f"tokens were to be placed on {parts} parts; give at least 1")
    return _place(kind, mask, parts, mask.key)


@lru_cache(maxsize=8)
def _place(kind: str, mask: Mask, parts: int, _key: int) -> tuple[Ranges, ...]:
    """The latest are kept, for strategies that place alike. The key tells apart equal masks of other factors."""
    return PLACEMENTS[kind](mask, parts)
