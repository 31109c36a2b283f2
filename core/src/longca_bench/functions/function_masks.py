"""The masks on which a function is verified, and the masks that wrong functions compute instead."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from longca.errors import MaskError, RequestError
from longca.masks import PATTERNS, Mask, build, from_dense, get_pattern, sample
from longca_bench.conformance.masks import small_masks, sparse_rows, static_masks, uneven
from longca_bench.functions.arguments import document_bounds, is_causal

__all__ = ["masks_for", "other_mask", "wrong_masks"]

#: Tokens of each rank. Most strategies need a length that the ranks, or twice the ranks, divide.
_LENGTH_PER_RANK = 96
#: Tokens of the longest mask on which mistakes are looked for. Their masks are made dense.
_MOST_TOKENS = 4096
#: Parameters that describe every mask, and those that describe one length for queries and keys.
_ANY, _SQUARE = {"mask", "attn_mask"}, {"cu_seqlens", "position_ids"}
_CAUSAL = {"causal", "is_causal"}
_DOCUMENTS = {"cu_seqlens", "cu_seqlens_q", "position_ids"}
_WINDOWS = {"window", "window_size"}
#: Patterns whose diagonals depend on the corner that they are aligned with.
_BANDS = ("causal", "causal_sliding_window", "full_sliding_window")


def masks_for(
    name: str, parameters: Collection[str], pattern: str | None, heads: tuple[int, int], *, square: bool, ranks: int
) -> list[tuple[str, Mask]]:
    """Labelled masks of conformance that a function's parameters can describe, or those of one pattern.

    `square` leaves only as many queries as keys. `ranks` is 0 on one device.

    Raises:
        RequestError: No parameter describes the mask, and no pattern is named.
        UnknownNameError: There is no such pattern.
    """
    square = square or bool(ranks) or bool(_SQUARE & set(parameters))
    patterns = {get_pattern(pattern).name} if pattern is not None else _described(name, set(parameters))
    every = _for_ranks(ranks) if ranks else (*small_masks((16, 64)), *sparse_rows(), *uneven())
    found = [
        (label, mask)
        for label, mask in dict(every).items()
        if mask.pattern in patterns and mask.heads in (1, *heads) and (mask.is_square or not square)
    ]
    return found or [(str(pattern), sample(str(pattern), _LENGTH_PER_RANK * max(2, ranks)))]


def _described(name: str, parameters: set[str]) -> set[str | None]:
    """The patterns that a function's parameters tell apart. None stands for masks without a pattern."""
    if parameters & _ANY:
        return {*PATTERNS, None}
    if not parameters & _CAUSAL:
        raise RequestError(
            f"no parameter of {name} says which keys a query sees; name its mask, such as --mask causal, or let it ask "
            "for mask, attn_mask or is_causal"
        )
    found: set[str | None] = {"full", "causal"}
    if parameters & _DOCUMENTS:
        found |= {"full_document", "causal_document"}
    if parameters & _WINDOWS:
        found |= {"full_sliding_window", "causal_sliding_window"}
    return found


def _for_ranks(ranks: int) -> list[tuple[str, Mask]]:
    """One mask of each static pattern, whose documents cross the ranks' shards."""
    seqlen = _LENGTH_PER_RANK * ranks
    documents = (seqlen // 3, 1, 1, seqlen // 2 - 3, 1, seqlen - seqlen // 3 - seqlen // 2)
    return static_masks(seqlen, documents=documents, window=40, block=16, prefix=50, global_tokens=9)


def other_mask(mask: Mask) -> Mask | None:
    """A mask of the same pattern and lengths: with its documents in reverse, or another window or prefix. None else."""
    factors = mask.factors
    changes: dict[str, Any] = {name: factors[name] // 2 for name in ("window", "prefix") if name in factors}
    if (documents := tuple(factors.get("documents", ()))) != documents[::-1]:
        changes = {"documents": documents[::-1]}
    return _changed(mask, **changes) if mask.pattern is not None and changes else None


def _changed(mask: Mask, **changes: Any) -> Mask:
    """The mask with other factors."""
    assert mask.pattern is not None
    lengths = {} if mask.is_square else {"seqlen_k": mask.seqlen_k}
    return build(mask.pattern, mask.seqlen_q, **lengths, **{**mask.factors, **changes})


def wrong_masks(mask: Mask) -> Iterator[tuple[str, Mask]]:
    """The masks that functions with a known mistake compute instead of a mask, each with the mistake in a sentence."""
    if mask.heads > 1 or max(mask.seqlen_q, mask.seqlen_k) > _MOST_TOKENS:
        return
    shown, causal, is_band = mask.dense(), is_causal(mask), mask.pattern in _BANDS and not mask.is_square
    queries, keys = np.arange(mask.seqlen_q)[:, None], np.arange(mask.seqlen_k)
    beyond = keys - queries - (mask.seqlen_k - mask.seqlen_q)  # the last query is aligned with the last key
    everything = np.ones_like(shown)
    widest = beyond <= 0 if causal else everything
    wrong = []
    if len(mask.factors.get("documents", ())) > 1:
        wrong.append(("Documents are not separated: queries see keys of other documents", widest))
    if mask.pattern is not None and (window := mask.factors.get("window")) is not None:
        wrong.append(("The window is wrong (one token too many)", _changed(mask, window=window + 1).dense()))
        if window:
            wrong.append(("The window is wrong (one token too few)", _changed(mask, window=window - 1).dense()))
        wrong.append(("The window is wrong (there is none)", widest))
    if causal:
        document = np.searchsorted(document_bounds(mask), np.arange(mask.seqlen_q), "right")
        same = document[:, None] == document if mask.is_square else everything
        diagonal = "The causal diagonal is wrong"
        wrong.append((f"{diagonal} (a query does not see its own key)", shown & (beyond < 0)))
        wrong.append((f"{diagonal} (a query sees the next key)", shown | ((beyond == 1) & same)))
        wrong.append((f"{diagonal} (a query sees all keys)", everything))
    if causal and is_band:
        square = build(str(mask.pattern), max(shown.shape), **mask.factors)
        said = "it starts in the top left corner, and LongCA aligns the last query with the last key"
        wrong.append((f"The causal diagonal is wrong ({said})", square.dense()[: mask.seqlen_q, : mask.seqlen_k]))
    for mistake, dense in wrong:
        if not np.array_equal(dense, shown):
            with suppress(MaskError):  # it has too many slices
                yield mistake, from_dense(dense)
