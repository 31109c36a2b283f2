"""Layers of a mask: those that are alone on their rows, those that are one call over copies of keys, and empty rows.

A layer shows the queries of a document one range of keys. It is alone on its rows if no other layer shows these queries
anything. If several layers show something to the same queries, copies of their ranges lie side by side, as the keys of
one document. Then one call computes the mask, and nothing is merged. All ranges of a document but the last have to be
seen whole. The last one has the call's window, which is none or the causal one. Answers to a shared question are such
documents: the question's keys, and then their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca.masks import Varlen
from longca.masks.forms import Window
from longca.masks.intervals import ragged

__all__ = ["Copies", "EmptyRows", "JoinedKeys", "alone_on_rows", "has_keys", "join_keys", "make_copies"]

#: The most ranges that are filled one by one. A fill writes its rows alone, and a masked one passes over all rows.
_MOST_RANGES = 4


@dataclass(frozen=True, eq=False)
class EmptyRows:
    """The queries that see no key.

    Attributes:
        mask: Whether each query sees no key: bool [Tq].
        ranges: The first and the last + 1 of such queries that lie side by side. Empty if there are too many.
    """

    mask: Tensor
    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, empty: NDArray[np.bool_], device: torch.device) -> EmptyRows:
        """The rows on a device, from whether each query sees no key."""
        edges = np.flatnonzero(np.diff(np.r_[False, empty, False]))
        ranges = tuple((int(first), int(last)) for first, last in edges.reshape(-1, 2))
        return cls(torch.from_numpy(empty).to(device), ranges if len(ranges) <= _MOST_RANGES else ())

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.mask.nbytes

    def clear(self, out: Tensor) -> None:
        """Writes 0 to these rows of a tensor [Tq, H, D]."""
        for first, last in self.ranges:
            out[first:last].zero_()
        if not self.ranges:
            out.masked_fill_(self.mask[:, None, None], 0.0)

    def clear_sums(self, lse: Tensor) -> None:
        """Writes −∞ to these rows of log-sum-exps [H, Tq]."""
        lse.masked_fill_(self.mask, -torch.inf)


@dataclass(frozen=True, eq=False)
class Copies:
    """Copies of keys.

    Attributes:
        keys: The key of each copy: int64 [copies].
        groups: Keys that have equally many copies, int64 [keys], and their copies, int64 [keys, copies of each]. A plan
            of the forward alone has none.
    """

    keys: Tensor
    groups: tuple[tuple[Tensor, Tensor], ...] = ()

    def made(self, x: Tensor) -> Tensor:
        """The copies of keys or values [Tk, H, D]: [copies, H, D]."""
        return x.index_select(0, self.keys)

    def summed(self, x: Tensor) -> Tensor:
        """For each key the sum of its copies' gradients [copies, H, D]: [Tk, H, D], summed in at least float32."""
        total = x.new_empty((sum(len(keys) for keys, _ in self.groups), *x.shape[1:]))
        dtype = torch.promote_types(x.dtype, torch.float32)
        for keys, copies in self.groups:
            total[keys] = x[copies].sum(1, dtype=dtype).to(x.dtype)
        return total


def make_copies(keys: NDArray[np.int64], seqlen_k: int, device: torch.device, *, with_sums: bool) -> Copies:
    """Puts the copies on a device.

    Args:
        keys: The key of each copy: [copies].
        seqlen_k: All keys.
        device: The device.
        with_sums: Whether gradients will be summed.
    """
    groups = []
    if with_sums:
        order, counts = np.argsort(keys, kind="stable"), np.bincount(keys, minlength=seqlen_k)
        first = np.cumsum(counts) - counts
        for count in np.unique(counts):
            some = np.flatnonzero(counts == count)
            copies = order[first[some, None] + np.arange(count)] if count else np.zeros((len(some), 0), np.int64)
            groups.append((torch.from_numpy(some).to(device), torch.from_numpy(copies).to(device)))
    return Copies(torch.from_numpy(keys).to(device), tuple(groups))


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
