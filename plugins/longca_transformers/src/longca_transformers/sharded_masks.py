"""Sharded masks: the masks of the whole batch, one for each kind of layer, with one layout of its tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from longca.errors import RequestError, UnsupportedError
from longca.kernels.ahead import Prefetch
from longca.kernels.prefetch import prefetch
from longca.manifests import Layout
from longca.masks import Mask, SliceMask, from_cu_seqlens, intersection, pack, within_window
from longca.parallel.layouts import layout
from longca.plan_cache import PlanCache
from longca_transformers.boundaries import document_starts
from longca_transformers.layer_masks import same_object
from longca_transformers.layers import within_documents
from longca_transformers.mask_functions import padding
from longca_transformers.own_masks import fitting, own_masks, own_of
from longca_transformers.parallel_setup import Setup

#: The masks of the windows of layers, and the layouts of a batch's masks. Ranks make them together.
_WINDOWS: PlanCache[Mask] = PlanCache()
_LAYOUTS: PlanCache[tuple[Layout, ...]] = PlanCache()


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
    ndim = 4

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[1, 1, T, T]. transformers asks for it if an outer model hands its mask to an inner one."""
        return 1, 1, self.mask.seqlen_q, self.mask.seqlen_k


def layer_windows(config: Any) -> dict[int | None, int]:
    """The number of layers of each kind, by their sliding windows. None is full attention."""
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


def sharded_masks(given: Mapping[str, Any], tokens: Tensor, setup: Setup) -> dict[int | None, ShardedMask]:
    """The mask of each kind of layer, by its sliding window, for the arguments of a call. It is a collective call."""
    weighed = _weighed(_row_masks(given, tokens, setup, ahead=False), setup)
    about = setup.key, tuple(mask.key for mask, _ in weighed)
    layouts = _LAYOUTS.get(None, about, lambda: layout(weighed, **setup.layout_options))
    return {
        window: ShardedMask(mask, window, found, setup)
        for window, (mask, _), found in zip(setup.windows, weighed, layouts, strict=True)
    }


def placed_ahead(given: Mapping[str, Any], tokens: Tensor, setup: Setup) -> Prefetch:
    """Places the tokens of a later batch on a side thread. The arguments and errors are those of `sharded_masks`."""
    return prefetch(_weighed(_row_masks(given, tokens, setup, ahead=True), setup), **setup.layout_options)


def _row_masks(given: Mapping[str, Any], tokens: Tensor, setup: Setup, *, ahead: bool) -> tuple[Mask, ...]:
    """The masks of layers of full attention: the user's own of each row, or one that is causal within documents."""
    shape = rows, length = tokens.shape[0], tokens.shape[1]
    own = given.get("longca_mask", own_masks(ahead=ahead))
    if own is not None:
        return fitting(own_of(own), rows, length, length)
    shown = given["attention_mask"].bool().cpu().numpy() if "attention_mask" in given else None
    starts = _starts(given.get("position_ids"), shape, shown, document_starts(given, rows, length))
    bounds = given.get("cu_seq_lens_q")
    if setup.require_documents and rows == 1 and not starts[:, 1:].any() and bounds is None:
        raise RequestError(
            "this batch has no boundaries of documents, and context_parallel(require_documents=True) asks for them. "
            "Use a collator that gives position_ids which start again in each document, such as "
            "DataCollatorWithFlattening, and no attention_mask"
        )
    mask: Mask = from_cu_seqlens([*np.flatnonzero(starts.reshape(-1)).tolist(), rows * length], causal=True)
    if not {"cu_seq_lens_q", "cu_seq_lens_k"}.isdisjoint(given):
        mask = within_documents([mask] * rows, bounds, given.get("cu_seq_lens_k"), length, length)
    if shown is not None and not shown.all():
        mask = intersection(mask, padding(shown.reshape(-1), rows * length, rows * length))
    assert isinstance(mask, SliceMask), "documents and padding are slices"
    return (same_object(mask),)


def _packed(masks: tuple[Mask, ...]) -> Mask:
    """The masks of rows side by side. The same masks give the same object."""
    return _WINDOWS.get(masks[0], tuple(mask.key for mask in masks), lambda: pack(masks))


def _starts(positions: Tensor | None, shape: tuple[int, int], shown: Any, numbered: Any) -> Any:
    """Whether a document starts at each token, by positions or numbers: [rows, tokens]. `shown` is no padding."""
    starts = np.zeros(shape, bool) if numbered is None else numbered
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
    elif (steps & shown[:, 1:] & shown[:, :-1] & ~starts[:, 1:]).any():
        raise RequestError(
            "position_ids start again within a row, and transformers ignores these documents because the call gives an "
            "attention_mask too; leave attention_mask away, or give the mask by using(mask)"
        )
    return starts


def _weighed(rows: tuple[Mask, ...], setup: Setup) -> list[tuple[Mask, float]]:
    """The mask of each kind of layer, in the order of `Setup.windows`, with the number of these layers."""

    def within(mask: Mask, window: int | None) -> Mask:
        return mask if window is None else _WINDOWS.get(mask, window, lambda: within_window(mask, window))

    return [
        (_packed(tuple(within(mask, window) for mask in rows)), float(layers))
        for window, layers in setup.windows.items()
    ]
