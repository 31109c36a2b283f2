"""Layers: one layer's attention, with the signature of transformers' attention interface."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longca.errors import RequestError, UnsupportedError
from longca.kernels.shapes import mask_of_bounds, sdpa
from longca.kernels.sinks import check_sinks
from longca.masks import Mask, SliceMask, intersection, within_window
from longca.plan_cache import PlanCache
from longca_transformers.boundaries import WITHOUT_POSITIONS, check_positions, refuse
from longca_transformers.layer_masks import LayerMask, layer_mask_of_tensor
from longca_transformers.model_check import count_call
from longca_transformers.own_masks import fitting, own_of

#: Arguments that change the scores or the weights, with what a user can do.
_REFUSED = {
    "sinks": "attention sinks that are not given as s_aux",
    "block_indices": "blocks of keys that the model chooses",
    "indices": "keys that the model chooses",
    "position_bias": "biases of scores",
    "alibi": "biases of scores",
    "head_mask": "masks of whole heads",
    "output_attentions": "weights of attention. Leave output_attentions away",
}

#: Masks of bounds and of windows, combined with those of a layer.
_NARROWED: PlanCache[Mask] = PlanCache(256)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # one break a layer, and masks compile nothing again
def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: LayerMask | Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    *,
    kernel: str = "auto",
    require_documents: bool = False,
    longca_mask: Any = None,
    s_aux: Tensor | None = None,
    softcap: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """One layer's attention, with the arguments of transformers' attention interface: out [rows, Sq, Hq, D], and None.

    One query a row, as in decoding, is computed by matrix products, because a mask of another length at each step would
    be planned at each step.

    `query` is [rows, Hq, Sq, D], `key` [rows, Hkv, Sk, D] and `value` [rows, Hkv, Sk, Dv]. `attention_mask` has the
    masks of the batch, or is a user's own tensor [rows or 1, 1, Sq, Sk]. `sliding_window` counts the keys that a query
    of this layer sees, itself included. `s_aux` are the layer's sinks [Hq], and `softcap` bounds its scores.
    `longca_mask` is the user's own mask, or one for each row. It takes the place of the bounds of packed documents,
    `cu_seq_lens_q` and `cu_seq_lens_k` [documents + 1]. Other arguments that change the result are refused.
    """
    name = type(module).__name__
    query, key, value = under_autocast(query, key, value)
    check_layer(name, query, key, value, {"dropout": dropout, **others})
    batch, queries, keys = query.shape[0], query.shape[2], key.shape[2]
    made = attention_mask if isinstance(attention_mask, LayerMask) else None
    if isinstance(attention_mask, Tensor) and longca_mask is None:
        made = layer_mask_of_tensor(attention_mask, keys)
    if made is longca_mask is None:
        check_hooks(module)
    masks, has_window = _masks(name, made, longca_mask, batch, queries, keys)
    has_documents = made is None or made.is_own or made.has_documents
    if made is not None:
        _check_passed_on(name, made, {"longca_mask": longca_mask, "cu_seq_lens_q": cu_seq_lens_q})
    if require_documents and queries > 1 and batch == 1 and not has_documents and longca_mask is cu_seq_lens_q is None:
        raise RequestError(
            "this batch has no boundaries of documents, and register(require_documents=True) asks for them. Use a "
            "collator that gives position_ids which start again in each document, such as "
            "DataCollatorWithFlattening, and no attention_mask"
        )
    is_doubtful = made is not None and (made.lost is not None or not has_documents)
    if made is not None and is_doubtful and queries == keys and longca_mask is cu_seq_lens_q is None:
        _check_boundaries(made, others.get("position_ids"))
    has_own = longca_mask is not None or (made is not None and made.is_own)
    if not has_own and (cu_seq_lens_q is not None or cu_seq_lens_k is not None):
        masks = [within_documents(masks, cu_seq_lens_q, cu_seq_lens_k, queries, keys)]
    if sliding_window is not None and not (made is not None and made.is_tensor):
        masks = [_within_window(name, mask, int(sliding_window), is_checked=has_window) for mask in masks]
    if queries == 1:
        if s_aux is not None:
            check_sinks(s_aux, query.transpose(1, 2)[0])
        dense = torch.stack([torch.from_numpy(mask.dense()) for mask in masks]).to(query.device)[:, None]
        out = _decoded(query, key, value, dense, scaling, softcap, s_aux)
    else:
        out = sdpa(query, key, value, masks, scale=scaling, kernel=kernel, softcap=softcap, sinks=s_aux)  # type: ignore[assignment]
    return out.transpose(1, 2), None


def _decoded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention [rows, Hq, 1, Dv] of one query a row, by the book. `visible` is [rows, 1, 1, Sk]."""
    rows, heads, _, head_dim = query.shape
    grouped = query.reshape(rows, key.shape[1], -1, head_dim)  # query heads of a KV head as its queries
    scores = (grouped @ key.mT).to(torch.promote_types(query.dtype, torch.float32))
    scores = scores * (head_dim**-0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    scores = scores.masked_fill(~visible, -torch.inf)
    if sinks is not None:
        column = sinks.to(scores.dtype).view(1, key.shape[1], -1, 1).expand(rows, -1, -1, -1)
        scores = torch.cat([scores, column], -1)
    weights = scores.softmax(-1)[..., : key.shape[2]].masked_fill(~visible, 0)  # of a query that sees nothing too
    return (weights.to(value.dtype) @ value).reshape(rows, heads, 1, -1)


def under_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """A layer's tensors in the dtype of `torch.autocast`, as it casts the inputs of PyTorch's own attention."""
    return tuple(x.to(computing_dtype(x.dtype, x.device.type)) for x in tensors)


def computing_dtype(dtype: torch.dtype, device: str) -> torch.dtype:
    """The dtype in which tensors of a dtype are computed: that of `torch.autocast` within it, which leaves float64."""
    if dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return dtype
    return torch.get_autocast_dtype(device)


def check_layer(name: str, query: Tensor, key: Tensor, value: Tensor, arguments: dict[str, Any]) -> None:
    """Checks that LongCA computes what a layer asks for by its other arguments, and counts the call."""
    count_call()
    if arguments["dropout"]:
        raise UnsupportedError(f"{name} has attention dropout {arguments['dropout']}; set attention_dropout=0.0")
    for argument, why in _REFUSED.items():
        given = arguments.get(argument)
        if given is not None and given is not False:
            raise UnsupportedError(
                f"{name} asks for {argument}, and LongCA computes no {why}. Or load the model with another "
                "attn_implementation"
            )
    if len({query.dtype, key.dtype, value.dtype}) > 1:
        raise RequestError(
            f"{name} gives query, key and value in {query.dtype}, {key.dtype} and {value.dtype}; load the model in one "
            "dtype, cast them in the model, or train under torch.autocast"
        )


def check_hooks(module: torch.nn.Module) -> None:
    """Checks that a layer without a mask did not lose it by accelerate's context parallelism."""
    if any(getattr(hook, "__module__", "") == "accelerate.big_modeling" for hook in module._forward_pre_hooks.values()):
        raise UnsupportedError(
            f"accelerate's context parallelism takes the mask of {type(module).__name__} away, so that its documents "
            "would be lost; set cp_size=1 in ParallelismConfig, and spread batches by "
            "longca_transformers.context_parallel"
        )


def _masks(
    name: str, given: LayerMask | None, own: Any, batch: int, queries: int, keys: int
) -> tuple[list[Mask], bool]:
    """The mask of each row, and whether a sliding window of the layer is in them."""
    if own is not None:
        return list(fitting(own_of(own), batch, queries, keys)), False
    if isinstance(given, LayerMask):
        return list(fitting(given.masks, batch, queries, keys)), not given.is_own
    raise RequestError(
        f"{name} gives no mask, so that its attention may be causal or not. Call longca_transformers."
        "register() before the model is made, and give layers that are no part of a decoder another attn_implementation"
    )


def _check_passed_on(name: str, made: LayerMask, got: dict[str, Any]) -> None:
    """Checks that a layer got the arguments of the model's call that change its mask."""
    advice = {
        "longca_mask": "give the mask by using(mask)",
        "cu_seq_lens_q": "give position_ids that start again in each document, use_cache=False and no attention_mask",
    }
    for argument in sorted(made.asked):
        if got[argument] is None and not made.is_own and (argument == "longca_mask" or not made.has_documents):
            raise RequestError(
                f"the call gives {argument}, and the model does not pass it on to its layers ({name}), so that the "
                f"mask would be lost; {advice[argument]}"
            )


def _check_boundaries(given: LayerMask, positions: Any) -> None:
    """Checks that no token sees the token before it if its position does not follow."""
    if given.lost is not None and given.has_positions:
        refuse(
            given.lost,
            "transformers keeps this boundary from the masks of a call with a cache or an attention_mask",
            "give use_cache=False (or set model.config.use_cache = False) and no attention_mask, or give the mask by "
            "using(mask)",
        )
    if given.lost is not None:
        refuse(given.lost, "the model makes its masks without position_ids", WITHOUT_POSITIONS)
    if not given.has_positions:
        check_positions(positions, given.masks)


def within_documents(
    masks: list[Mask], bounds: Tensor | None, key_bounds: Tensor | None, queries: int, keys: int
) -> Mask:
    """The mask of a batch of one row within the bounds of documents [documents + 1] that a collator gave."""
    if len(masks) != 1 or queries != keys:
        raise RequestError(
            f"cu_seq_lens_q packs all documents into one row, and the batch has {len(masks)} rows of {queries} queries "
            f"and {keys} keys; flatten the batch, as DataCollatorWithFlattening does"
        )
    if bounds is None:
        raise RequestError("the call gives cu_seq_lens_k without cu_seq_lens_q; give both, with the same bounds")
    documents, of_keys = (
        mask_of_bounds(bounds if each is None else each, None, False, (-1, -1), queries, keys)
        for each in (bounds, key_bounds)
    )

    def narrowed() -> Mask:
        if documents != of_keys:
            raise RequestError(
                "cu_seq_lens_k has other bounds than cu_seq_lens_q, and a layer's queries and keys are the same "
                "tokens; give both the same bounds"
            )
        if (end := documents.array[:, 1].max(initial=0)) < queries:
            raise RequestError(
                f"cu_seq_lens_q ends at {end}, and the batch has {queries} tokens; give bounds of all tokens, virtual "
                "tokens of PEFT included"
            )
        return intersection(masks[0], documents)

    return _NARROWED.get(masks[0], (documents.key, of_keys.key), narrowed)


def _within_window(name: str, mask: Mask, window: int, *, is_checked: bool) -> Mask:
    """A mask within a sliding window. A mask that should be within it already is checked."""
    lo = mask.seqlen_k - mask.seqlen_q - window + 1
    if isinstance(mask, SliceMask) and not (mask.array[:, 4] < lo).any():
        return mask
    if is_checked:
        raise RequestError(
            f"{name} has a sliding window of {window} tokens, and its mask shows keys before it. The model gave this "
            "layer the mask of another; give the mask by longca_mask= or using(mask)"
        )
    return _NARROWED.get(mask, window, lambda: within_window(mask, window))
