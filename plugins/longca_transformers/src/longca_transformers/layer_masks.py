"""Layer masks: the masks of a batch for one kind of layer, as transformers asks for them once a forward.

Equal masks of several steps are one object, so that its plans are found again.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from longca.errors import RequestError, UnsupportedError
from longca.kernels.shapes import contents_of
from longca.masks import Mask, SliceMask, from_dense, intersection
from longca_transformers.boundaries import (
    LostStart,
    ModelCall,
    calls_of_models,
    check_names,
    document_starts,
    has_numbers,
    lost_start,
    merged,
    positions_of_caller,
)
from longca_transformers.mask_functions import (
    SHIFTS,
    MaskFunction,
    UnknownFunctionError,
    agrees,
    closure_of,
    evaluated,
    has_documents,
    known,
    name_of,
    of_documents,
    padding,
)
from longca_transformers.model_check import is_stateful
from longca_transformers.own_masks import fitting, own_masks

#: The masks of tensors [rows, 1, queries, keys].
_DENSE = WeakTensorKeyDictionary()
#: Arguments of a model's call that change the masks, and that only its layers get.
_ASKED = frozenset({"longca_mask", "cu_seq_lens_q"})


class NoInterfaceError(UnsupportedError, AttributeError):
    """A model's own attention asks a mask for what only tensors have. `hasattr` answers no."""


@dataclass(frozen=True)
class LayerMask:
    """The masks of a batch for one kind of layer.

    Attributes:
        masks: The mask of each row of the batch.
        is_own: Whether the user gave them, so that a sliding window of a layer is not in them.
        is_tensor: Whether the user gave them as a tensor, which takes the place of sliding windows too.
        has_documents: Whether the boundaries of packed documents are in them.
        has_positions: Whether the model gave its positions together with the request for masks.
        lost: A document whose start is in the positions of the call and not in the masks.
        asked: The arguments of the model's call that its layers have to get: `longca_mask`, `cu_seq_lens_q`.
    """

    masks: tuple[Mask, ...]
    is_own: bool = False
    is_tensor: bool = False
    has_documents: bool = False
    has_positions: bool = False
    lost: LostStart | None = None
    asked: frozenset[str] = frozenset()

    def __radd__(self, _scores: Any) -> NoReturn:
        """Models that compute their own attention add a mask to scores, or read the mask as a tensor."""
        raise NoInterfaceError(
            "the model uses its mask by itself, so it does not take its attention from AttentionInterface and LongCA "
            "would compute nothing; load this model with attn_implementation='eager'"
        )

    __getitem__ = __radd__

    def __getattr__(self, name: str) -> NoReturn:
        """Anything else of a tensor. Python asks for names with underscores on its own."""
        if name.startswith("__"):
            raise AttributeError(name)
        self.__radd__(None)

    def contiguous(self) -> NoReturn:
        """`generate` of transformers 5 asks a mask for this if a cache is static."""
        raise UnsupportedError(
            "generate asks for the mask of a static cache as a tensor, and LongCA's masks are none; leave "
            "cache_implementation away"
        )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[rows, 1, queries, keys]. transformers asks for it if an outer model hands its mask to an inner one."""
        return len(self.masks), 1, self.masks[0].seqlen_q, self.masks[0].seqlen_k

    @property
    def ndim(self) -> int:
        """Dims, as `shape`."""
        return 4


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a mask is no tensor
def make_layer_mask(
    batch_size: int,
    kv_length: int,
    mask_function: MaskFunction,
    q_length: int | None = None,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    attention_mask: Tensor | LayerMask | None = None,
    device: torch.device | str | None = None,
    cache_position: Tensor | None = None,
    **_others: Any,
) -> LayerMask:
    """The masks of a batch. It has the signature of transformers' mask interface.

    `attention_mask` [rows, keys] says which keys are no padding. The mask that an outer model made is returned as it
    is. Releases before 5 give `cache_position`, the indices of the queries, in place of their number and offset.
    """
    calls = calls_of_models()
    if isinstance(attention_mask, LayerMask):
        if calls and isinstance(calls[-1].arguments.get("attention_mask"), LayerMask):
            attention_mask.contiguous()  # `generate` of transformers 4 made it
        return attention_mask
    if q_length is None:
        assert cache_position is not None, "transformers gives one of the two"
        q_length, q_offset = len(cache_position), int(cache_position[0])
    if (own := own_masks()) is not None:
        return LayerMask(fitting(own, batch_size, q_length, kv_length), is_own=True)
    if attention_mask is not None and attention_mask.ndim != 2:
        raise RequestError(
            f"attention_mask has the shape {list(attention_mask.shape)}; give [rows, tokens], or a mask of pairs as "
            "[rows, 1, queries, keys]"
        )
    queries = range(int(q_offset), int(q_offset) + q_length)
    keys = range(kv_offset, kv_offset + kv_length)
    where = torch.device(device if device is not None else "cpu" if attention_mask is None else attention_mask.device)
    rows = 1 if _is_alike(mask_function) else batch_size
    found = [_of_function(mask_function, row, queries, keys, where) for row in range(rows)]
    found *= batch_size // rows
    if attention_mask is not None:
        seen = attention_mask[:, kv_offset : kv_offset + kv_length].bool().cpu().numpy()
        if seen.shape[1] < kv_length or not seen.all():
            found = [
                intersection(mask, padding(shown, q_length, kv_length)) for mask, shown in zip(found, seen, strict=True)
            ]
    if documents := _documents(calls, batch_size, max(queries.stop, keys.stop), attention_mask):
        spans = [(queries.start, queries.stop)], [(keys.start, keys.stop)]
        found = [intersection(mask, each.cut(*spans)) for mask, each in zip(found, documents, strict=True)]
    masks, is_packed, positions = tuple(map(same_object, found)), has_documents(mask_function), positions_of_caller()
    call = merged(calls)
    return LayerMask(
        masks,
        has_documents=is_packed or any(len(each.array) > 1 for each in documents),
        has_positions=positions is not None,
        lost=None if is_packed else _lost(call.get("position_ids") if positions is None else positions, masks),
        asked=_ASKED & call.keys(),
    )


def layer_mask_of_tensor(tensor: Tensor, keys: int) -> LayerMask:
    """The masks of a tensor of four dims, which a user gave, or which a model made without the mask interface.

    All layers give the same tensor, so it is read once. A user's own tensor has the documents that the user means.

    Args:
        tensor: Booleans or scores [rows, 1, queries, keys]. It may have more keys.
        keys: Number of keys of the layer.
    """
    if tensor.ndim != 4 or tensor.shape[1] != 1:
        raise RequestError(
            f"attention_mask has the shape {list(tensor.shape)}, and LongCA computes one mask for all heads; give "
            "[rows, 1, queries, keys]"
        )
    state, known = (contents_of(tensor), keys), _DENSE.get(tensor)
    if known is None or known[0] != state:
        masks, calls = tuple(from_dense(row[..., :keys]) for row in tensor), calls_of_models()
        call = merged(calls)
        given = call.get("attention_mask")
        by_model = bool(calls) and (given is None or getattr(given, "ndim", None) == 2)
        documents = _documents(calls, len(masks), keys, None)
        if documents:
            masks = tuple(intersection(mask, each) for mask, each in zip(masks, documents, strict=True))
        made = LayerMask(
            masks,
            is_tensor=not by_model,
            has_documents=not by_model or any(len(each.array) > 1 for each in documents),
            lost=_lost(call.get("position_ids"), masks) if by_model else None,
            asked=_ASKED & call.keys(),
        )
        known = _DENSE[tensor] = state, made
    found: LayerMask = known[1]
    return found


def _documents(
    calls: Sequence[ModelCall], rows: int, tokens: int, attention_mask: Tensor | None
) -> tuple[SliceMask, ...]:
    """The documents of each row that a call numbers by `seq_idx` or `attention_mask`, tokens × tokens. () without."""
    if not calls:
        return ()
    outer = calls[-1]
    check_names(outer.arguments.keys() - inspect.signature(outer.model.forward).parameters.keys())
    given = [call.arguments for call in calls]
    numbers = {"seq_idx": next((each["seq_idx"] for each in given if "seq_idx" in each), None)}
    numbers["attention_mask"] = next(filter(has_numbers, (each.get("attention_mask") for each in given)), None)
    if numbers["attention_mask"] is not None:
        _check_numbers(numbers["attention_mask"], calls, attention_mask)
    starts = document_starts(numbers, rows, tokens)
    return () if starts is None else tuple(of_documents(ids, tokens) for ids in starts.cumsum(axis=1))


def _check_numbers(given: Tensor, calls: Sequence[ModelCall], attention_mask: Tensor | None) -> None:
    """Checks that a model takes the numbers of an `attention_mask` for booleans alone."""
    call, model = merged(calls), calls[-1].model
    config: Any = model.config
    balances = getattr(config.get_text_config(), "output_router_logits", False)
    reasons = {
        "makes another mask of them": attention_mask is not None
        and not (given.shape == attention_mask.shape and torch.equal(given != 0, attention_mask)),
        "may compute positions of them": positions_of_caller() is None and "position_ids" not in call,
        "has layers with a state, which multiply by them": is_stateful(model),
        "weighs the loss of its experts by them": call.get("output_router_logits", balances),
    }
    if found := [reason for reason, is_so in reasons.items() if is_so]:
        raise UnsupportedError(
            f"attention_mask numbers the documents, and {type(model).__name__} {' and '.join(found)}; leave "
            "attention_mask away and give position_ids that start again in each document"
        )


def _lost(positions: Any, masks: Sequence[Mask]) -> LostStart | None:
    """The start of a document that positions have and the masks of all tokens do not have."""
    if not isinstance(positions, Tensor) or not 1 < masks[0].seqlen_q == masks[0].seqlen_k:
        return None
    return lost_start(positions, masks)


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
        if agrees(mask, lambda b, h, q, k: function(b, h, q + queries.start, k + keys.start), row, device):
            return mask
    except UnknownFunctionError:
        pass
    return evaluated(function, row, queries, keys, device)


@lru_cache(256)
def same_object(mask: SliceMask) -> SliceMask:
    """The object by which an equal mask of an earlier batch is known."""
    return mask
