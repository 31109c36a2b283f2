"""Merging: how many layers of a mask have results that are merged.

A kernel that takes a mask as layers can spare the merging in three ways. A layer that is alone on its rows writes them
in place: no other layer shows these queries anything. A mask of few rectangles below one another has a call for each.
Ranges of keys that several layers show to the same queries are copied to lie side by side, so that one call sees all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from longca.masks import SliceMask
from longca.masks.forms import Varlen, Window
from longca.masks.rectangles import rectangles

__all__ = ["merged_layers"]

#: Copies of a key at most, on average, for copies to be worth it.
_COPIES = 2

_FULL, _CAUSAL = Window(None, None), Window(None, 0)


def merged_layers(mask: SliceMask) -> int:
    """The number of layers of a mask of one head whose results have to be merged."""
    layers = mask.layers
    if len(layers) == 1 or rectangles(mask, len(layers)):
        return 0
    bounds = np.unique(np.concatenate([layer.cu_seqlens_q for layer in layers]).astype(np.int64))
    keys = np.stack([_keys(layer, bounds) for layer in layers])
    crowded = (keys > 0).sum(axis=0) > 1
    merged = ((keys > 0) & crowded).any(axis=1)
    can_join = {layer.window for layer in layers} <= {_FULL, _CAUSAL}
    if can_join and keys.sum() <= _COPIES * int(layers[0].cu_seqlens_k[-1]):
        return 0
    return int(merged.sum())


def _keys(layer: Varlen, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """The keys that a layer shows the queries between bounds, all together: [bounds - 1]."""
    document = np.searchsorted(layer.cu_seqlens_q, bounds[:-1], side="right") - 1
    bounds_k = layer.cu_seqlens_k.astype(np.int64)
    keys: NDArray[np.int64] = bounds_k[document + 1] - bounds_k[document]
    if layer.window == _CAUSAL:  # the last of the queries sees most
        keys = np.maximum(keys - (layer.cu_seqlens_q[document + 1] - bounds[1:]), 0)
    return keys
