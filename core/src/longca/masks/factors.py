"""The factors of mask patterns: the meaning of each one, and the checks that a value fits its mask.

A check takes the value and the sequence length. It returns the value in one canonical type.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from longca.errors import MaskError
from longca.limits import MAX_DOCUMENTS, check_pieces, shown
from longca.masks.bounds import check_bounds

__all__ = ["FACTORS", "Factor"]


@dataclass(frozen=True)
class Factor:
    """One keyword of a pattern.

    Attributes:
        name: The keyword.
        meaning: One line with its meaning and the allowed values.
        check: Function of (value, seqlen) that returns the canonical value, or raises MaskError.
    """

    name: str
    meaning: str
    check: Callable[[Any, int], Any]


def _integer(name: str, least: int, most: int | None = None) -> Callable[[Any, int], int]:
    def check(value: Any, seqlen: int) -> int:
        top = seqlen if most is None else most
        try:
            number = operator.index(value)
        except TypeError:
            raise MaskError(f"{name} is {shown(value)}; give an integer from {least} to {top}") from None
        if isinstance(value, bool) or not least <= number <= top:
            limit = " (the sequence length)" if most is None else ""
            raise MaskError(f"{name} is {shown(value)}; it must be from {least} to {top}{limit}")
        return number

    return check


def _documents(value: Any, seqlen: int) -> tuple[int, ...]:
    try:
        listed = list(islice(value, MAX_DOCUMENTS + 1))
        lengths = np.asarray(listed)
    except (TypeError, ValueError):
        raise MaskError(f"documents is {shown(value)}; give a list of document lengths") from None
    check_pieces(len(listed), "documents or more", "Take fewer and longer documents")
    if not lengths.size or lengths.ndim != 1 or not np.issubdtype(lengths.dtype, np.integer):
        raise MaskError("documents must be a list of at least one integer length")
    short = np.flatnonzero(lengths < 1)
    if len(short):
        raise MaskError(f"document {short[0]} has length {shown(int(lengths[short[0]]))}; each needs at least 1 token")
    total = sum(lengths.tolist())
    if total != seqlen:
        raise MaskError(
            f"documents sum to {shown(total)} tokens, but seqlen is {seqlen}; make the lengths sum to seqlen"
        )
    return tuple(lengths.tolist())


def _boundaries(value: Any, seqlen: int) -> tuple[int, ...]:
    bounds = check_bounds(value, "variable")
    if bounds[-1] != seqlen:
        raise MaskError(f"boundaries end at {bounds[-1]}, but seqlen is {seqlen}; the last boundary must be seqlen")
    return tuple(bounds.tolist())


def _kept(value: Any, seqlen: int) -> float:
    del seqlen
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value <= 1:
        raise MaskError(f"kept is {shown(value)}; the kept ratio must be above 0 and at most 1 (0.2 keeps a fifth)")
    return float(value)


FACTORS = {
    f.name: f
    for f in (
        Factor("documents", "document lengths, each at least 1, that sum to seqlen", _documents),
        Factor(
            "window",
            "how many tokens a query sees on each visible side, from 0",
            _integer("window", 0, 2**30),
        ),
        Factor("prefix", "tokens of the prefix, from 0 to seqlen", _integer("prefix", 0)),
        Factor("block", "tokens a block, from 1", _integer("block", 1, 2**30)),
        Factor(
            "global_tokens",
            "leading tokens that see all tokens and that all tokens see, from 0",
            _integer("global_tokens", 0),
        ),
        Factor("boundaries", "block bounds, strictly ascending from 0 to seqlen", _boundaries),
        Factor("kept", "share of key blocks each query block keeps, in (0, 1]", _kept),
        Factor("heads", "heads with masks of their own, from 1", _integer("heads", 1, 2**16)),
        Factor("seed", "seed of the random scores, from 0", _integer("seed", 0, 2**63 - 1)),
    )
}
