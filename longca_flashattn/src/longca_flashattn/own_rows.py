"""The layers of a mask that are alone on their rows: no other layer shows these queries anything. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from longca.masks import Varlen

__all__ = ["alone_on_rows", "has_keys"]


def alone_on_rows(layers: Sequence[Varlen]) -> list[bool]:
    """Whether each of several layers is alone on its rows, which are those of its documents with keys."""
    if len(layers) < 2:
        return [False] * len(layers)
    bounds = [np.c_[layer.cu_seqlens_q[:-1], layer.cu_seqlens_q[1:]][has_keys(layer)].T for layer in layers]
    change = np.zeros(layers[0].cu_seqlens_q[-1] + 1, dtype=np.int64)  # of the number of layers, from row to row
    for starts, stops in bounds:
        np.add.at(change, starts, 1)
        np.add.at(change, stops, -1)
    crowded = np.r_[0, np.cumsum(np.cumsum(change) > 1)]  # rows of several layers, up to each row
    return [bool((crowded[starts] == crowded[stops]).all()) for starts, stops in bounds]


def has_keys(layer: Varlen) -> NDArray[np.bool_]:
    """Whether each document of a layer has keys: bool [documents]."""
    return np.diff(layer.cu_seqlens_k) > 0
