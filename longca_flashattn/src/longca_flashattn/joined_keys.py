"""Layers as one varlen call over copies of keys. Torch-free.

A layer shows the queries of a document one range of keys. If several layers show something to the same queries, copies
of their ranges lie side by side, as the keys of one document. Then one call computes the mask, and nothing is merged.

All ranges of a document but the last have to be seen whole. The last one has the call's window, which is none or the
causal one. Answers to a shared question are such documents: the question's keys, and then their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longca.masks import Varlen
from longca.masks.forms import Window
from longca.masks.intervals import ragged

__all__ = ["JoinedKeys", "join_keys"]

#: Copies of a key at most, on average: about as many as were measured (results/h200/dense/layers.json).
_COPIES = 2
#: Numbers of copies that keys may have. Each takes a sum of its own in a backward.
_NUMBERS = 4

_FULL, _CAUSAL = Window(None, None), Window(None, 0)


class JoinedKeys(NamedTuple):
    """One varlen call over copies of keys.

    Attributes:
        varlen: The call.
        keys: The key of each copy: int64 [copies].
    """

    varlen: Varlen
    keys: NDArray[np.int64]


def join_keys(layers: Sequence[Varlen]) -> JoinedKeys | None:
    """The one call that shows what several layers show, or None if there is none or it needs too many copies."""
    if len(layers) < 2 or not {layer.window for layer in layers} <= {_FULL, _CAUSAL}:
        return None
    bounds = np.unique(np.concatenate([layer.cu_seqlens_q for layer in layers]).astype(np.int64))
    ordered = sorted(layers, key=lambda layer: layer.window == _CAUSAL)  # causal ranges are last
    starts, stops = np.stack([_ranges(layer, bounds) for layer in ordered], axis=1)
    lengths, is_causal = stops - starts, np.array([layer.window == _CAUSAL for layer in ordered])
    causal, whole = lengths[is_causal], lengths[~is_causal].sum(0)
    tails, window = causal.sum(0), _CAUSAL if causal.any() else _FULL
    if ((causal > 0).sum(0) > 1).any() or (window == _CAUSAL and ((whole > 0) & (tails < np.diff(bounds))).any()):
        return None
    keys, seqlen_k = ragged(starts.T.ravel(), lengths.T.ravel())[1], int(layers[0].cu_seqlens_k[-1])
    if len(keys) > _COPIES * seqlen_k or len(np.unique(np.bincount(keys, minlength=seqlen_k))) > _NUMBERS:
        return None
    bounds_k = np.r_[0, np.cumsum(lengths.sum(0))]
    return JoinedKeys(Varlen(bounds.astype(np.int32), bounds_k.astype(np.int32), window), keys)


def _ranges(layer: Varlen, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first key, and one past the last, that a layer shows the queries between bounds: [2, bounds - 1]."""
    document = np.searchsorted(layer.cu_seqlens_q, bounds[:-1], side="right") - 1
    starts, stops = (layer.cu_seqlens_k.astype(np.int64)[document + n] for n in (0, 1))
    if layer.window == _CAUSAL:
        stops = np.maximum(starts, stops - (layer.cu_seqlens_q[document + 1] - bounds[1:]))
    return np.stack([starts, stops])
