"""Guesses about masks: what a function returns that computes another mask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from longca.masks import Mask, build, from_dense
from longca.masks.slice_mask import SliceMask
from longca_bench.functions.arguments import document_bounds, is_causal
from longca_bench.functions.guesses import Dense, Guess, equals
from longca_bench.functions.oracle import Asked, right

__all__ = [
    "alignment",
    "diagonal",
    "documents",
    "ignored",
    "no_window",
    "transposed",
    "window",
    "with_mask",
]


def with_mask(asked: Asked, dense: Dense, detail: str = "") -> Iterator[Guess]:
    """A guess with another mask, if it is another one."""
    mask = asked.problem.concrete_mask
    if mask.heads == 1 and not np.array_equal(dense, mask.dense()):
        yield detail, equals(right(replace(asked, problem=asked.problem.with_mask(from_dense(dense)))))


def _beyond(mask: Mask) -> NDArray[np.int64]:
    """The distance of each key beyond the diagonal: [queries, keys]. The last query is aligned with the last key."""
    queries, keys = np.arange(mask.seqlen_q)[:, None], np.arange(mask.seqlen_k)
    return np.asarray(keys - queries - (mask.seqlen_k - mask.seqlen_q))


def _widest(mask: Mask) -> Dense:
    """Every pair, or every pair that is not in the future."""
    return _beyond(mask) <= 0 if is_causal(mask) else np.ones((mask.seqlen_q, mask.seqlen_k), np.bool_)


def documents(asked: Asked) -> Iterator[Guess]:
    """Queries that see all documents, up to themselves if the mask is causal."""
    mask = asked.problem.concrete_mask
    if len(mask.factors.get("documents", ())) > 1:
        yield from with_mask(asked, _widest(mask))


def window(asked: Asked) -> Iterator[Guess]:
    """A window that is one token wider, or one token narrower."""
    mask = asked.problem.concrete_mask
    if mask.pattern is None or "window" not in mask.factors:
        return
    for change, detail in ((1, "one token too many"), (-1, "one token too few")):
        window = mask.factors["window"] + change
        if window >= 0:
            lengths = {} if mask.is_square else {"seqlen_k": mask.seqlen_k}
            other = build(mask.pattern, mask.seqlen_q, **lengths, **{**mask.factors, "window": window})
            yield from with_mask(asked, other.dense(), detail)


def no_window(asked: Asked) -> Iterator[Guess]:
    """The mask without its window."""
    mask = asked.problem.concrete_mask
    if "window" in mask.factors:
        yield from with_mask(asked, _widest(mask))


def diagonal(asked: Asked) -> Iterator[Guess]:
    """A causal diagonal that is one key earlier, or one key later."""
    mask = asked.problem.concrete_mask
    if not is_causal(mask):
        return
    beyond, shown = _beyond(mask), mask.dense()
    together = np.ones_like(shown)
    if mask.is_square:
        document = np.searchsorted(document_bounds(mask), np.arange(mask.seqlen_q), "right")
        together = document[:, None] == document
    yield from with_mask(asked, shown & (beyond < 0), "a query does not see its own key")
    yield from with_mask(asked, shown | ((beyond == 1) & together), "a query sees the next key")


def alignment(asked: Asked) -> Iterator[Guess]:
    """A diagonal that aligns the first query with the first key."""
    mask = asked.problem.concrete_mask
    if not mask.is_square and isinstance(mask, SliceMask) and mask.pattern in _BANDS:
        more = mask.seqlen_k - mask.seqlen_q
        lo, hi = mask.array[0, 4:] - more
        ahead = _beyond(mask) + more
        yield from with_mask(asked, ((ahead >= lo) | (mask.pattern == "causal")) & (ahead <= hi))


_BANDS = ("causal", "causal_sliding_window", "full_sliding_window")


def transposed(asked: Asked) -> Iterator[Guess]:
    """The transposed mask."""
    if asked.problem.concrete_mask.is_square and asked.problem.concrete_mask.heads == 1:
        yield from with_mask(asked, asked.problem.concrete_mask.dense().T)


def ignored(asked: Asked) -> Iterator[Guess]:
    """A full or causal mask instead of this one."""
    mask = asked.problem.concrete_mask
    everything = np.ones((mask.seqlen_q, mask.seqlen_k), np.bool_)
    yield from with_mask(asked, everything, "every query sees every key")
    yield from with_mask(asked, _beyond(mask) <= 0, "every mask is causal")
