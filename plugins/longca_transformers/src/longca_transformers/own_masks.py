"""Own masks: the masks of a user, which take the place of a model's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from longca.errors import RequestError
from longca.masks import Mask

_OWN: ContextVar[_Own | None] = ContextVar("longca_own_masks", default=None)


@dataclass
class _Own:
    """The masks of `using`, whether a model took them, and whether `prefetch` read them."""

    masks: tuple[Mask, ...]
    was_taken: bool = False
    was_prefetched: bool = False


@contextmanager
def using(mask: Mask | Sequence[Mask]) -> Iterator[None]:
    """Gives the batches of a block of code their own masks in place of the model's. Sliding windows are kept.

    The mask replaces causality, boundaries of documents and padding of every model that is called within. A call may
    give it as the argument `longca_mask=` as well, if the model passes its arguments on to its layers.

    Args:
        mask: One mask for all rows of a batch, or one for each.

    Raises:
        RequestError: It is no mask, or no model took it until the end of the block.
    """
    given = _Own(own_of(mask))
    token = _OWN.set(given)
    try:
        yield
    finally:
        _OWN.reset(token)
    if not given.was_taken:
        raise RequestError(
            "no model took the mask of using(mask): the block only prefetched a batch. Prefetch it by "
            "prefetch(..., longca_mask=mask) outside of using, and call the model under using(mask)"
            if given.was_prefetched
            else "no model took the mask of using(mask): none with attn_implementation='longca' was called in the "
            "block, or its call gave an attention_mask of four dims; give one mask, to a model that check(model) finds "
            "right"
        )


def own_of(given: Any) -> tuple[Mask, ...]:
    """The masks that a user gave: one mask, or a list of masks."""
    masks = given if isinstance(given, (list, tuple)) else (given,)
    if not masks or not all(isinstance(mask, Mask) for mask in masks):
        raise RequestError(
            f"your mask is a {type(given).__name__}; give a mask of longca.masks, such as "
            "masks.build('causal', tokens) or masks.from_dense(matrix), or a list with one for each row of the batch"
        )
    return tuple(masks)


def own_masks(*, ahead: bool = False) -> tuple[Mask, ...] | None:
    """The masks of `using`, if the code runs within it. A model takes them, if they are not read ahead of a call."""
    if (own := _OWN.get()) is None:
        return None
    own.was_taken |= not ahead
    own.was_prefetched |= ahead
    return own.masks


def fitting(masks: Sequence[Mask], batch: int, queries: int, keys: int) -> tuple[Mask, ...]:
    """The user's mask of each row."""
    each = tuple(masks) * batch if len(masks) == 1 else tuple(masks)
    if len(each) != batch or any((mask.seqlen_q, mask.seqlen_k) != (queries, keys) for mask in each):
        sizes = ", ".join(f"{mask.seqlen_q} × {mask.seqlen_k}" for mask in masks[:4])
        raise RequestError(
            f"your {len(masks)} masks are of {sizes} tokens, and the batch has {batch} rows of {queries} queries and "
            f"{keys} keys; give one mask of that size, or one for each row"
        )
    return each
