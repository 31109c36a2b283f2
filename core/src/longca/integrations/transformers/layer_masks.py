"""Layer masks: the masks of a batch for one kind of layer, as transformers asks for them once a forward.

Equal masks of several steps are one object, so that its plans are found again. A user's own masks take the place of the
model's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from longca.errors import RequestError, UnsupportedError
from longca.integrations.transformers.boundaries import LostStart, lost_start, positions_of_caller
from longca.integrations.transformers.mask_functions import (
    SHIFTS,
    MaskFunction,
    UnknownFunctionError,
    agrees,
    closure_of,
    evaluated,
    has_documents,
    known,
    name_of,
    padding,
)
from longca.masks import Mask, SliceMask, intersection

__all__ = ["LayerMask", "fitting", "make_layer_mask", "own_masks", "own_of", "same_object", "using"]

_OWN: ContextVar[_Own | None] = ContextVar("longca_own_masks", default=None)
#: The latest masks, each as its only key.
_LATEST: OrderedDict[SliceMask, SliceMask] = OrderedDict()
_MOST = 256


class NoInterfaceError(UnsupportedError, AttributeError):
    """A model's own attention asks a mask for what only tensors have. `hasattr` answers no."""


@dataclass(frozen=True)
class LayerMask:
    """The masks of a batch for one kind of layer.

    Attributes:
        masks: The mask of each row of the batch.
        is_own: Whether the user gave them, so that a sliding window of a layer is not in them.
        has_documents: Whether the boundaries of packed documents are in them.
        has_positions: Whether the model gave its positions together with the request for masks.
        lost: A document whose start is in these positions and not in the masks.
    """

    masks: tuple[Mask, ...]
    is_own: bool = False
    has_documents: bool = False
    has_positions: bool = False
    lost: LostStart | None = None

    def __radd__(self, _scores: Any) -> NoReturn:
        """Models that compute their own attention add a mask to scores, or read the mask as a tensor.

        Raises:
            NoInterfaceError: Always, because LongCA would not be called there.
        """
        raise NoInterfaceError(
            "the model uses its mask by itself, so it does not take its attention from AttentionInterface and LongCA "
            "would compute nothing; load this model with attn_implementation='eager'"
        )

    __getitem__ = __radd__

    def __getattr__(self, name: str) -> NoReturn:
        """Anything else of a tensor. Python asks for names with underscores on its own.

        Raises:
            NoInterfaceError: As `__radd__`.
            AttributeError: A name that Python asks for.
        """
        if name.startswith("__"):
            raise AttributeError(name)
        self.__radd__(None)

    def contiguous(self) -> NoReturn:
        """transformers 5 asks a mask for this, and transformers 4 for its dims, if a cache is static.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            "generate asks for the mask of a static cache as a tensor, and LongCA's masks are none; leave "
            "cache_implementation away"
        )

    ndim = property(contiguous)


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
    if not given.was_taken and given.was_prefetched:
        raise RequestError(
            "no model took the mask of using(mask): the block only prefetched a batch. Prefetch it by "
            "prefetch(..., longca_mask=mask) outside of using, and call the model under using(mask)"
        )
    if not given.was_taken:
        raise RequestError(
            "no model took the mask of using(mask): none with attn_implementation='longca' was called in the block, or "
            "its call gave an attention_mask of four dims; give one mask, to a model that check(model) finds right"
        )


def own_of(given: Any) -> tuple[Mask, ...]:
    """The masks that a user gave.

    Args:
        given: One mask, or a list of masks.

    Raises:
        RequestError: Something else, or an empty list.
    """
    masks = given if isinstance(given, (list, tuple)) else (given,)
    if not masks or not all(isinstance(mask, Mask) for mask in masks):
        raise RequestError(
            f"your mask is {given!r}; give a mask of longca.masks, such as masks.build('causal', tokens), or a list "
            "with one for each row of the batch"
        )
    return tuple(masks)


def own_masks(*, ahead: bool = False) -> tuple[Mask, ...] | None:
    """The masks of `using`, if the code runs within it. A model takes them.

    Args:
        ahead: Whether they are read for a later call, so that no model has taken them yet.
    """
    if (own := _OWN.get()) is None:
        return None
    own.was_taken |= not ahead
    own.was_prefetched |= ahead
    return own.masks


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a mask is no tensor
def make_layer_mask(
    batch_size: int,
    kv_length: int,
    mask_function: MaskFunction,
    q_length: int | None = None,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    attention_mask: Tensor | None = None,
    device: torch.device | str | None = None,
    cache_position: Tensor | None = None,
    **_others: Any,
) -> LayerMask:
    """The masks of a batch. It has the signature of transformers' mask interface.

    Args:
        batch_size: Rows of the batch.
        kv_length: Number of keys.
        mask_function: Whether a query sees a key, by indices.
        q_length: Number of queries. None for those of `cache_position`.
        q_offset: Index of the first query.
        kv_offset: Index of the first key.
        attention_mask: Which keys are no padding: [rows, keys]. None if all are not.
        device: The device of the function's tensors.
        cache_position: Indices of the queries, which transformers gave before version 5.
        **_others: Other arguments of transformers, which masks do not depend on.

    Raises:
        RequestError: The user's own masks do not fit.
        UnsupportedError: The function is not known, and there are too many pairs to evaluate it.
        MaskError: The function's mask has too many slices.
    """
    if q_length is None:
        assert cache_position is not None, "transformers gives one of the two"
        q_length, q_offset = len(cache_position), int(cache_position[0])
    if (own := own_masks()) is not None:
        return LayerMask(fitting(own, batch_size, q_length, kv_length), is_own=True)
    queries = range(int(q_offset), int(q_offset) + q_length)
    keys = range(kv_offset, kv_offset + kv_length)
    where = torch.device(device if device is not None else "cpu" if attention_mask is None else attention_mask.device)
    found = [_of_function(mask_function, row, queries, keys, where) for row in _rows(mask_function, batch_size)]
    found = found * (batch_size // len(found))
    if attention_mask is not None:
        seen = attention_mask[:, kv_offset : kv_offset + kv_length].bool().cpu().numpy()
        if seen.shape[1] < kv_length or not seen.all():
            found = [
                intersection(mask, padding(shown, q_length, kv_length)) for mask, shown in zip(found, seen, strict=True)
            ]
    masks, is_packed, positions = tuple(map(same_object, found)), has_documents(mask_function), positions_of_caller()
    lost = None
    if positions is not None and not is_packed and 1 < q_length == kv_length:
        lost = lost_start(positions, masks)
    return LayerMask(masks, has_documents=is_packed, has_positions=positions is not None, lost=lost)


def fitting(masks: Sequence[Mask], batch: int, queries: int, keys: int) -> tuple[Mask, ...]:
    """The user's mask of each row.

    Raises:
        RequestError: Another number of masks, or masks of another size.
    """
    each = tuple(masks) * batch if len(masks) == 1 else tuple(masks)
    if len(each) != batch or any((mask.seqlen_q, mask.seqlen_k) != (queries, keys) for mask in each):
        sizes = ", ".join(f"{mask.seqlen_q} × {mask.seqlen_k}" for mask in masks[:4])
        raise RequestError(
            f"your {len(masks)} masks are of {sizes} tokens, and the batch has {batch} rows of {queries} queries and "
            f"{keys} keys; give one mask of that size, or one for each row"
        )
    return each


def _rows(function: MaskFunction, batch: int) -> range:
    """The rows of a batch for which a function has to be read: one if it is the same for all."""
    return range(1 if _is_alike(function) else batch)


def _is_alike(function: MaskFunction) -> bool:
    """Whether a function is the same for all rows, because it holds numbers and such functions alone."""
    for value in closure_of(function).values():
        for part in value if isinstance(value, tuple) else (value,):
            if not (isinstance(part, (int, float)) or (callable(part) and _is_alike(part))):
                return False
    return name_of(function) in SHIFTS


def _of_function(function: MaskFunction, row: int, queries: range, keys: range, device: torch.device) -> SliceMask:
    """The mask of a function for one row of the batch."""
    try:
        mask = known(function, row, max(queries.stop, keys.stop))
        mask = mask.cut([(queries.start, queries.stop)], [(keys.start, keys.stop)])
        if agrees(mask, _shifted(function, queries.start, keys.start), row, device):
            return mask
    except UnknownFunctionError:
        pass
    return evaluated(function, row, queries, keys, device)


def _shifted(function: MaskFunction, queries: int, keys: int) -> MaskFunction:
    return lambda batch, head, q, k: function(batch, head, q + queries, k + keys)


def same_object(mask: SliceMask) -> SliceMask:
    """The object by which an equal mask of an earlier batch is known."""
    if mask in _LATEST:
        _LATEST.move_to_end(mask)
        return _LATEST[mask]
    _LATEST[mask] = mask
    if len(_LATEST) > _MOST:
        _LATEST.popitem(last=False)
    return mask
