"""Known mistakes of attention functions. A mistake is found by computing what it gives, and comparing."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from longca.errors import MaskError
from longca.masks import Mask, SliceMask, build, from_dense
from longca_bench.functions.arguments import document_bounds, is_causal

__all__ = ["Mistake", "wrong_masks"]

#: Tokens of the longest mask on which mistakes are looked for. Their masks are made dense.
_MOST_TOKENS = 4096
_BANDS = ("causal", "causal_sliding_window", "full_sliding_window")

Dense = NDArray[np.bool_]


def _beyond(mask: Mask) -> NDArray[np.int64]:
    """The distance of each key beyond the diagonal: [queries, keys]. The last query is aligned with the last key."""
    queries, keys = np.arange(mask.seqlen_q)[:, None], np.arange(mask.seqlen_k)
    return np.asarray(keys - queries - (mask.seqlen_k - mask.seqlen_q))


def _widest(mask: Mask) -> Dense:
    """Every pair, or every pair that is not in the future."""
    return _beyond(mask) <= 0 if is_causal(mask) else np.ones((mask.seqlen_q, mask.seqlen_k), np.bool_)


def _documents(mask: Mask) -> Iterator[tuple[Dense, str]]:
    """Queries that see all documents, up to themselves if the mask is causal."""
    if len(mask.factors.get("documents", ())) > 1:
        yield _widest(mask), ""


def _window(mask: Mask) -> Iterator[tuple[Dense, str]]:
    """A window that is one token wider, or one token narrower, or none."""
    if mask.pattern is None or "window" not in mask.factors:
        return
    lengths = {} if mask.is_square else {"seqlen_k": mask.seqlen_k}
    for change, detail in ((1, "one token too many"), (-1, "one token too few")):
        if (window := mask.factors["window"] + change) >= 0:
            yield build(mask.pattern, mask.seqlen_q, **lengths, **{**mask.factors, "window": window}).dense(), detail
    yield _widest(mask), "there is none"


def _causal(mask: Mask) -> Iterator[tuple[Dense, str]]:
    """No causal diagonal, or one that is shifted."""
    if not is_causal(mask):
        return
    beyond, shown = _beyond(mask), mask.dense()
    is_same = np.ones_like(shown)
    if mask.is_square:
        document = np.searchsorted(document_bounds(mask), np.arange(mask.seqlen_q), "right")
        is_same = document[:, None] == document
    yield shown & (beyond < 0), "a query does not see its own key"
    yield shown | ((beyond == 1) & is_same), "a query sees the next key"
    yield np.ones_like(shown), "a query sees all keys"
    if not mask.is_square and isinstance(mask, SliceMask) and mask.pattern in _BANDS:
        more = mask.seqlen_k - mask.seqlen_q
        lo, hi = mask.array[0, 4:] - more
        ahead = beyond + more
        top_left = ((ahead >= lo) | (mask.pattern == "causal")) & (ahead <= hi)
        yield top_left, "it starts in the top left corner, and LongCA aligns the last query with the last key"


class Mistake(StrEnum):
    """A known mistake. Of several that explain as many masks, the first counts."""

    STRIDES = "strides"
    KEPT_MASK = "kept_mask"
    RANGE = "range"
    GROUP = "group"
    DOCUMENTS = "documents"
    WINDOW = "window"
    CAUSAL = "causal"

    @property
    def says(self) -> str:
        """The mistake in one sentence, without the full stop."""
        return _SAYS[self]


_SAYS = {
    Mistake.STRIDES: "Strided tensors are misread, and contiguous ones are right",
    Mistake.KEPT_MASK: "The mask of an earlier call is kept",
    Mistake.RANGE: "Large scores overflow: subtract a row's maximum before exp, also in merges",
    Mistake.GROUP: "A group of half of the ranks is wrong: take ranks and sizes from the group",
    Mistake.DOCUMENTS: "Documents are not separated: queries see keys of other documents",
    Mistake.WINDOW: "The window is wrong",
    Mistake.CAUSAL: "The causal diagonal is wrong",
}
#: The masks that a function with a mistake computes instead of a mask, each with details. Other calls show the others.
_MASKS = {Mistake.DOCUMENTS: _documents, Mistake.WINDOW: _window, Mistake.CAUSAL: _causal}


def wrong_masks(mask: Mask) -> Iterator[tuple[Mistake, str, Mask]]:
    """The masks that known mistakes compute instead of a mask, each with details."""
    if mask.heads > 1 or max(mask.seqlen_q, mask.seqlen_k) > _MOST_TOKENS:
        return
    shown = mask.dense()
    for mistake, masks in _MASKS.items():
        for dense, detail in masks(mask):
            if not np.array_equal(dense, shown):
                try:
                    yield mistake, detail, from_dense(dense)
                except MaskError:  # it has too many slices
                    continue
