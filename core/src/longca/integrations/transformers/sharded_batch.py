"""ShardedBatch: a batch of all ranks, cut into the tokens of this rank before a model sees it.

The rows of a batch and its packed documents become documents of one sequence [T]. The masks are made of that whole
sequence, one for each kind of layer, and `longca.layout` places its tokens once for all layers.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from longca.errors import RequestError, UnsupportedError
from longca.integrations.transformers.layer_masks import fitting, own_masks, same_object
from longca.integrations.transformers.mask_functions import padding
from longca.kernels.shapes import mask_of_bounds
from longca.manifests import Layout
from longca.masks import Mask, Slice, SliceMask, from_cu_seqlens, intersection, pack
from longca.plan_cache import PlanCache

if TYPE_CHECKING:
    from longca.integrations.transformers.context_parallel import Setup

__all__ = ["ShardedBatch", "ShardedMask", "layer_windows"]

IGNORED = -100
#: Tensors of a call that are sharded or read here. Others would keep the tokens of all ranks.
_KNOWN = {
    "input_ids",
    "inputs_embeds",
    "attention_mask",
    "position_ids",
    "labels",
    "shift_labels",
    "num_items_in_batch",
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "max_length_q",
    "max_length_k",
}
#: Arguments that ask for what ranks do not compute together, with what to do.
_REFUSED = {
    "past_key_values": "a cache holds the keys of one device. Leave it away, and generate without context_parallel",
    "use_cache": "a cache holds the keys of one device. Give use_cache=False, and generate without context_parallel",
    "cache_position": "decoding runs on one device. Leave it away, and generate without context_parallel",
    "logits_to_keep": "each rank has the logits of its own tokens. Leave it away",
    "output_attentions": "LongCA computes no weights of attention. Leave it away",
    "output_router_logits": "the balance of experts would be that of one rank's tokens. Set it to False",
}
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: The masks of the windows of layers, and the layouts of a batch's masks. Ranks make them together.
_WINDOWS: PlanCache[Mask] = PlanCache(64)
_LAYOUTS: PlanCache[tuple[Layout, ...]] = PlanCache(64)


@dataclass(frozen=True, eq=False)
class ShardedMask:
    """The mask of all ranks' tokens for one kind of layer. A layer gets it as its attention mask.

    Attributes:
        mask: The mask of the whole sequence: T × T.
        window: The sliding window of these layers. None for full attention.
        layout: The tokens of each rank.
        setup: The ranks and the strategy.
    """

    mask: Mask
    window: int | None
    layout: Layout
    setup: Setup


@dataclass(frozen=True, eq=False)
class ShardedBatch:
    """A batch, cut into the tokens of this rank.

    Attributes:
        arguments: The arguments of the model's call, with this rank's tokens: [1, Tl].
        masks: The mask of each kind of layer, by its sliding window.
        shape: Rows and tokens of the whole batch.
    """

    arguments: dict[str, Any]
    masks: dict[int | None, ShardedMask]
    shape: tuple[int, int]

    @classmethod
    def of(cls, arguments: Mapping[str, Any], setup: Setup) -> ShardedBatch:
        """Cuts a batch. It is a collective call.

        Args:
            arguments: The arguments of a model's call, the same on all ranks.
            setup: The ranks and the strategy.

        Raises:
            RequestError: The ranks have different batches, or the batch does not fit.
            UnsupportedError: The call asks for what ranks do not compute together.
        """
        given = {name: value for name, value in arguments.items() if value is not None}
        tokens = _tokens(given)
        _check_arguments(given, setup)
        _check_alike(given, setup)
        shape = tokens.shape[0], tokens.shape[1]
        base = _base_mask(given, shape, tokens.device, setup.require_documents)
        masks = _masks(base, setup, tokens)
        batch = cls({}, masks, shape)
        batch.arguments.update(batch._cut(given, tokens))
        return batch

    def shard(self, x: Tensor) -> Tensor:
        """This rank's tokens of a tensor [rows, tokens, ...]: [1, Tl, ...].

        Raises:
            RequestError: The tensor has another shape than the batch.
        """
        if tuple(x.shape[:2]) != self.shape:
            raise RequestError(
                f"a tensor of the shape {list(x.shape)} was to be sharded, and the batch has {self.shape[0]} rows of "
                f"{self.shape[1]} tokens; give [rows, tokens, ...] of the whole batch"
            )
        held = next(iter(self.masks.values()))
        return held.layout.shard(x.flatten(0, 1), held.setup.rank_in(held.layout))[None]

    def _cut(self, given: dict[str, Any], tokens: Tensor) -> dict[str, Any]:
        """The arguments with this rank's tokens, true positions and targets."""
        dropped = {"attention_mask", "longca_mask", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"}
        cut = {name: value for name, value in given.items() if name not in dropped}
        for name in {"input_ids", "inputs_embeds"} & cut.keys():
            cut[name] = self.shard(cut[name])
        positions = given.get("position_ids", torch.arange(self.shape[1], device=tokens.device)[None])
        cut |= {"position_ids": self.shard(positions.expand(self.shape)), "use_cache": False}
        if "labels" in given or "shift_labels" in given:
            targets = given.get("shift_labels")
            if targets is None:
                targets = pad(given["labels"], (0, 1), value=IGNORED)[:, 1:]
            if "num_items_in_batch" not in given:
                cut["num_items_in_batch"] = (targets != IGNORED).sum()
            cut["labels"] = cut["shift_labels"] = self.shard(targets)
        return cut


def layer_windows(config: Any) -> dict[int | None, int]:
    """The number of layers of each kind, by their sliding windows. None is full attention.

    Args:
        config: The configuration of a decoder.

    Raises:
        UnsupportedError: Layers of a kind that needs the tokens of other ranks in another way.
    """
    window: Any = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = ["sliding_attention" if window else "full_attention"] * config.num_hidden_layers
    if unknown := sorted(set(kinds) - {"sliding_attention", "full_attention"}):
        raise UnsupportedError(
            f"the model has layers of {', '.join(unknown)}, and context_parallel knows full_attention and "
            "sliding_attention; train this model on one device, or its other layers need tokens of other ranks"
        )
    return dict(Counter(int(window) if kind == "sliding_attention" else None for kind in kinds))


def _tokens(given: Mapping[str, Any]) -> Tensor:
    """The tokens of the batch: [rows, tokens] or [rows, tokens, width].

    Raises:
        RequestError: There are none, or they have another shape.
    """
    names = [name for name in ("input_ids", "inputs_embeds") if name in given]
    if len(names) != 1:
        raise RequestError(f"the call gives {' and '.join(names) or 'no tokens'}; give input_ids or inputs_embeds")
    tokens = cast(Tensor, given[names[0]])
    if tokens.ndim != (wanted := 2 if names[0] == "input_ids" else 3):
        raise RequestError(f"{names[0]} has the shape {list(tokens.shape)}; give {wanted} dims, [rows, tokens, ...]")
    return tokens


def _check_arguments(given: Mapping[str, Any], setup: Setup) -> None:
    """Checks everything that a rank knows by itself. All ranks find the same in the same call."""
    for name, why in _REFUSED.items():
        value = given.get(name)
        if value is not None and value is not False and not (isinstance(value, int) and value == 0):
            raise UnsupportedError(f"the call gives {name} under context_parallel, and {why}")
    for name, value in given.items():
        if isinstance(value, Tensor) and name not in _KNOWN:
            raise UnsupportedError(
                f"the call gives the tensor {name}, and context_parallel does not know how to shard it; leave it away"
            )
    tokens = _tokens(given)
    rows, length = tokens.shape[:2]
    if rows * length < setup.mesh.size():
        raise RequestError(
            f"the batch has {rows * length} tokens, and the mesh {setup.mesh.size()} ranks; give each rank one token "
            "at least"
        )
    if tokens.device.type != setup.mesh.device_type:
        raise RequestError(
            f"the batch is on {tokens.device}, and the mesh is of {setup.mesh.device_type}; give both the same device"
        )
    for name in ("labels", "shift_labels", "attention_mask", "position_ids"):
        value, allowed = given.get(name), [(rows, length)] + [(1, length)] * (name == "position_ids")
        if value is not None and (not isinstance(value, Tensor) or tuple(value.shape) not in allowed):
            found = (
                f"the shape {list(value.shape)}" if isinstance(value, Tensor) else f"the type {type(value).__name__}"
            )
            raise RequestError(
                f"{name} has {found}, and the batch {rows} rows of {length} tokens; give [{rows}, {length}] of the "
                "whole batch, and masks of pairs by longca.integrations.transformers.using(mask)"
            )


def _check_alike(given: Mapping[str, Any], setup: Setup) -> None:
    """Checks that the ranks have the same batch. They compare a digest.

    Raises:
        RequestError: They differ.
    """
    tensors = {name: given[name] for name in sorted(_KNOWN & given.keys()) if isinstance(given[name], Tensor)}
    about = {name: (list(x.shape), str(x.dtype)) for name, x in tensors.items()}
    digest = torch.tensor(zlib.crc32(repr(about).encode()), device=_tokens(given).device)
    for x in tensors.values():
        numbers = x.detach().contiguous().flatten().view(_INTEGERS[x.itemsize]).long().to(digest.device)
        places = torch.arange(1, len(numbers) + 1, device=digest.device)
        digest = digest * 1000003 + (numbers * (places * 2654435761 + 1)).sum()
    extremes = torch.stack([digest, -digest])
    for group in setup.groups:
        dist.all_reduce(extremes, dist.ReduceOp.MAX, group)
    if extremes[0] != -extremes[1]:
        raise RequestError(
            "the ranks of the mesh have different batches, and each would train on a part of its own; give all ranks "
            "of the context-parallel mesh the same input_ids, position_ids and labels (a data loader must shard over "
            "the data-parallel ranks alone)"
        )


def _base_mask(given: Mapping[str, Any], shape: tuple[int, int], device: torch.device, require_documents: bool) -> Mask:
    """The mask of layers of full attention: the user's own, or causal within documents and without padding."""
    rows, length = shape
    own = given.get("longca_mask", own_masks())
    if own is not None:
        return _packed(fitting((own,) if isinstance(own, Mask) else own, rows, length, length))
    shown = given["attention_mask"].bool().cpu().numpy() if "attention_mask" in given else None
    starts = _starts(given.get("position_ids"), shape, shown)
    bounds = given.get("cu_seq_lens_q")
    if require_documents and rows == 1 and not starts[:, 1:].any() and bounds is None:
        raise RequestError(
            "this batch has no boundaries of documents, and context_parallel(require_documents=True) asks for them. "
            "Use a collator that gives position_ids which start again in each document, such as "
            "DataCollatorWithFlattening, and no attention_mask"
        )
    mask = from_cu_seqlens([*np.flatnonzero(starts.reshape(-1)).tolist(), rows * length], causal=True)
    if bounds is not None:
        if rows != 1:
            raise RequestError(
                f"cu_seq_lens_q packs all documents into one row, and the batch has {rows} rows; flatten the batch, as "
                "DataCollatorWithFlattening does"
            )
        mask = intersection(mask, mask_of_bounds(bounds, None, False, (-1, -1), length, length))
    if shown is not None and not shown.all():
        mask = intersection(mask, padding(shown.reshape(-1), rows * length, rows * length))
    return same_object(mask)


def _packed(masks: tuple[Mask, ...]) -> Mask:
    """The masks of rows side by side. The same masks give the same object."""
    return _WINDOWS.get(masks[0], tuple(mask.key for mask in masks), lambda: pack(masks))


def _starts(positions: Tensor | None, shape: tuple[int, int], shown: Any) -> Any:
    """Whether a document starts at each token: [rows, tokens]. Every row starts one.

    Raises:
        RequestError: Padding on the left without positions, or documents that transformers would not see.
    """
    starts = np.zeros(shape, bool)
    starts[:, 0] = True
    if positions is None:
        if shown is not None and (left := np.flatnonzero(~shown[:, 0] & shown.any(1))).size:
            raise RequestError(
                f"row {left[0]} begins with padding, and its positions would count the padding; pad on the right "
                "(tokenizer.padding_side = 'right'), or give position_ids"
            )
        return starts
    steps = np.diff(np.broadcast_to(positions.cpu().numpy(), shape), axis=1) != 1
    if shown is None:
        starts[:, 1:] |= steps
    elif (steps & shown[:, 1:] & shown[:, :-1]).any():
        raise RequestError(
            "position_ids start again within a row, and transformers ignores these documents because the call gives an "
            "attention_mask too; leave attention_mask away, or give the mask by using(mask)"
        )
    return starts


def _masks(base: Mask, setup: Setup, tokens: Tensor) -> dict[int | None, ShardedMask]:
    """The mask and the layout of each kind of layer. Equal batches find both again."""
    length = base.seqlen_q

    def within(window: int | None) -> Mask:
        if window is None:
            return base
        band = SliceMask([Slice(0, length, 0, length, 1 - window)], length, length)
        return _WINDOWS.get(base, window, lambda: intersection(base, band))

    each = {window: within(window) for window in setup.windows}
    weighed = [(mask, float(setup.windows[window])) for window, mask in each.items()]
    dtype = setup.dtype(tokens.device.type)
    about = setup.key, dtype, tuple(mask.key for mask in each.values())
    layouts = _LAYOUTS.get(base, about, lambda: setup.placed(weighed, dtype))
    return {
        window: ShardedMask(mask, window, found, setup)
        for (window, mask), found in zip(each.items(), layouts, strict=True)
    }
