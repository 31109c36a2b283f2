"""Sharded layers: the masks and the attention of a model whose tokens are spread over ranks.

A model under `context_parallel` sees the tokens of one rank, so the masks that it makes of them are wrong. Only the
kind of a layer is read from its mask function. Its mask is that of the whole batch.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from longca.errors import RequestError, UnsupportedError
from longca.kernels.attention import attention
from longca_transformers.layers import check_hooks, check_layer, under_autocast
from longca_transformers.mask_functions import MaskFunction, closure_of, name_of, walk
from longca_transformers.sharded_batch import ShardedBatch
from longca_transformers.sharded_masks import ShardedMask

#: The batch of the forward that runs.
CURRENT: ContextVar[ShardedBatch | None] = ContextVar("longca_sharded_batch", default=None)
_WINDOW = "sliding_window_overlay"
#: Mask functions whose masks are made from the whole batch.
_KNOWN = {
    "causal_mask_function",
    "packed_sequence_mask_function",
    "remap_positions_for_packed_sequence",
    "and_masks",
    _WINDOW,
}


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a mask is no tensor
def take_sharded_mask(
    *_args: Any, mask_function: MaskFunction, attention_mask: Any = None, **_others: Any
) -> ShardedMask | None:
    """The mask of the whole batch for one kind of layer, which the parts of `mask_function` name.

    It is called as transformers' mask interface. The result is None for a kind of layer that the configuration does
    not list, because models also ask for masks that none of their layers gets. The mask of an outer model is returned.
    """
    if (batch := CURRENT.get()) is None:
        raise RequestError(
            "this part of a model, or a model that shares its configuration, was called by itself, and "
            "context_parallel shards the batches of the whole model that it was given; call that model, or remove() "
            "it first"
        )
    if isinstance(attention_mask, ShardedMask):
        return attention_mask
    parts = {name_of(part): part for part in walk(mask_function)}
    if unknown := sorted(set(parts) - _KNOWN):
        raise UnsupportedError(
            f"the model's masks have {', '.join(unknown)}, which context_parallel cannot make of the whole batch; give "
            "the mask by longca_transformers.using(mask) with another model, or train on one device"
        )
    window = int(closure_of(parts[_WINDOW])["sliding_window"]) if _WINDOW in parts else None
    return batch.masks.get(window)


def attend_sharded(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: ShardedMask | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """One layer's attention of all ranks' tokens. It communicates, so all ranks call it in the same order.

    The arguments are those of `attend`, with this rank's queries [1, Hq, Tl, D], keys [1, Hkv, Tl, D] and values
    [1, Hkv, Tl, Dv].

    Returns:
        out [1, Tl, Hq, Dv], and None for the weights.
    """
    name = type(module).__name__
    query, key, value = under_autocast(query, key, value)
    check_layer(name, query, key, value, {"dropout": dropout, **others})
    if not isinstance(attention_mask, ShardedMask):
        check_hooks(module)
        raise UnsupportedError(
            f"{name} gives no mask of context_parallel, so that its keys would be those of one rank; set layer_types "
            "and sliding_window of the configuration to what the layers compute, and give layers that are no part of "
            "the decoder another attn_implementation"
        )
    if sliding_window is not None and attention_mask.window != sliding_window:
        raise RequestError(
            f"{name} has a sliding window of {sliding_window} tokens, and the model gave it the mask of "
            f"window {attention_mask.window}; set layer_types and sliding_window of the configuration"
        )
    setup = attention_mask.setup
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    out = attention(
        q,
        k,
        v,
        attention_mask.mask,
        softmax_scale=scaling,
        softcap=softcap,
        sinks=s_aux,
        kernel=setup.kernel,
        strategy=setup.strategy,
        mesh=setup.mesh,
        placement=attention_mask.layout,
    )
    assert isinstance(out, Tensor), "no log-sum-exp was asked for"
    return out[None], None
