"""The masks on which a function is verified: those of conformance that its parameters can describe."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from longca.errors import RequestError
from longca.masks import PATTERNS, Mask, build, get_pattern, sample
from longca_bench.conformance.masks import small_masks, sparse_rows, uneven
from longca_bench.functions.arguments import ARGUMENTS, Argument

__all__ = ["LENGTH_PER_RANK", "Labelled", "another", "masks_for"]

#: Tokens of each rank. Most strategies need a length that the ranks, or twice the ranks, divide.
LENGTH_PER_RANK = 96
_BLOCKS = (16, 64)
_DOCUMENTS = {Argument.CU_SEQLENS, Argument.CU_SEQLENS_Q, Argument.POSITION_IDS}
_WINDOWS = {Argument.WINDOW, Argument.WINDOW_SIZE}
_CAUSAL = {Argument.CAUSAL, Argument.IS_CAUSAL}
#: Parameters that describe one length for queries and keys.
_SQUARE = {Argument.CU_SEQLENS, Argument.POSITION_IDS}

Labelled = tuple[str, Mask]


def masks_for(
    name: str, asks: Collection[str], pattern: str | None, heads: tuple[int, int], *, square: bool, ranks: int
) -> list[Labelled]:
    """Labelled masks for a function.

    Args:
        name: The function's name.
        asks: The parameters that it asks for.
        pattern: Only masks of this pattern. None for all masks that the parameters can describe.
        heads: Query heads and KV heads.
        square: Whether to take only masks with as many queries as keys.
        ranks: Number of ranks, or 0 on one device.

    Raises:
        RequestError: No parameter describes the mask, and no pattern is named.
        UnknownNameError: There is no such pattern.
    """
    square = square or bool(ranks) or bool(_SQUARE & set(asks))
    patterns = None if pattern is not None or _takes_any(asks) else _described(name, asks)
    if pattern is not None:
        get_pattern(pattern)
        patterns = {pattern}
    every = _for_ranks(ranks) if ranks else dict((*small_masks(_BLOCKS), *sparse_rows(), *uneven()))
    found = [
        (label, mask)
        for label, mask in every.items()
        if (patterns is None or mask.pattern in patterns)
        and mask.heads in (1, *heads)
        and (mask.is_square or not square)
    ]
    return found or [(pattern or "", sample(str(pattern), LENGTH_PER_RANK * max(2, ranks)))]


def another(mask: Mask) -> Mask | None:
    """A mask of the same pattern and lengths: with its documents in reverse, or another window or prefix. None else."""
    factors = mask.factors
    changes: dict[str, Any] = {name: factors[name] // 2 for name in ("window", "prefix") if name in factors}
    if (documents := tuple(factors.get("documents", ()))) != documents[::-1]:
        changes = {"documents": documents[::-1]}
    if mask.pattern is None or not changes:
        return None
    lengths = {} if mask.is_square else {"seqlen_k": mask.seqlen_k}
    return build(mask.pattern, mask.seqlen_q, **lengths, **{**factors, **changes})


def _takes_any(asks: Collection[str]) -> bool:
    return any(ARGUMENTS[name].takes_any for name in asks)


def _described(name: str, asks: Collection[str]) -> set[str]:
    """The patterns that a function's parameters tell apart."""
    asked = {ARGUMENTS[name] for name in asks}
    if not asked & _CAUSAL:
        raise RequestError(
            f"no parameter of {name} says which keys a query sees; name its mask, such as --mask causal, or let it ask "
            "for mask, attn_mask or is_causal"
        )
    found = {"full", "causal"}
    if asked & _DOCUMENTS:
        found |= {"full_document", "causal_document"}
    if asked & _WINDOWS:
        found |= {"full_sliding_window", "causal_sliding_window"}
    return found


def _for_ranks(ranks: int) -> dict[str, Mask]:
    """One mask of each static pattern, whose documents cross the ranks' shards."""
    seqlen = LENGTH_PER_RANK * ranks
    documents = (seqlen // 3, 1, 1, seqlen // 2 - 3, 1, seqlen - seqlen // 3 - seqlen // 2)
    given: dict[str, Any] = {"documents": documents, "window": 40, "block": 16, "prefix": 50, "global_tokens": 9}
    static = [kind for kind in PATTERNS.values() if not kind.per_head]
    factors = {kind.name: {each: given[each] for each in kind.factors if each in given} for kind in static}
    return {name: sample(name, seqlen, **chosen) for name, chosen in factors.items()}
