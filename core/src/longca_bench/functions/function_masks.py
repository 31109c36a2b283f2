"""The masks on which a function is verified: those of conformance that its parameters can describe."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from longca.errors import RequestError
from longca.masks import PATTERNS, Mask, build, get_pattern, sample
from longca_bench.conformance.masks import small_masks, sparse_rows, static_masks, uneven

__all__ = ["masks_for", "other_mask"]

#: Tokens of each rank. Most strategies need a length that the ranks, or twice the ranks, divide.
_LENGTH_PER_RANK = 96
_BLOCKS = (16, 64)
#: Parameters that describe every mask.
_ANY = {"mask", "attn_mask"}
_CAUSAL = {"causal", "is_causal"}
_DOCUMENTS = {"cu_seqlens", "cu_seqlens_q", "position_ids"}
_WINDOWS = {"window", "window_size"}
#: Parameters that describe one length for queries and keys.
_SQUARE = {"cu_seqlens", "position_ids"}


def masks_for(
    name: str, parameters: Collection[str], pattern: str | None, heads: tuple[int, int], *, square: bool, ranks: int
) -> list[tuple[str, Mask]]:
    """Labelled masks for a function.

    Args:
        name: The function's name.
        parameters: The parameters that LongCA fills.
        pattern: Only masks of this pattern. None for all masks that the parameters can describe.
        heads: Query heads and KV heads.
        square: Whether to take only masks with as many queries as keys.
        ranks: Number of ranks, or 0 on one device.

    Raises:
        RequestError: No parameter describes the mask, and no pattern is named.
        UnknownNameError: There is no such pattern.
    """
    square = square or bool(ranks) or bool(_SQUARE & set(parameters))
    patterns = {get_pattern(pattern).name} if pattern is not None else _described(name, set(parameters))
    every = _for_ranks(ranks) if ranks else (*small_masks(_BLOCKS), *sparse_rows(), *uneven())
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


def other_mask(mask: Mask) -> Mask | None:
    """A mask of the same pattern and lengths: with its documents in reverse, or another window or prefix. None else."""
    factors = mask.factors
    changes: dict[str, Any] = {name: factors[name] // 2 for name in ("window", "prefix") if name in factors}
    if (documents := tuple(factors.get("documents", ()))) != documents[::-1]:
        changes = {"documents": documents[::-1]}
    if mask.pattern is None or not changes:
        return None
    lengths = {} if mask.is_square else {"seqlen_k": mask.seqlen_k}
    return build(mask.pattern, mask.seqlen_q, **lengths, **{**factors, **changes})


def _for_ranks(ranks: int) -> list[tuple[str, Mask]]:
    """One mask of each static pattern, whose documents cross the ranks' shards."""
    seqlen = _LENGTH_PER_RANK * ranks
    documents = (seqlen // 3, 1, 1, seqlen // 2 - 3, 1, seqlen - seqlen // 3 - seqlen // 2)
    return static_masks(seqlen, documents=documents, window=40, block=16, prefix=50, global_tokens=9)
