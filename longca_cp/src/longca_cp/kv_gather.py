"""Gathering keys and values: a rank gets the rows that it needs, in ascending order, and returns their gradients.

If all ranks together need most of the rows, everything is all-gathered, and gradients are reduce-scattered in float32.
If they need less, an all-to-all brings each rank only the rows it needs. Gradients then return in their own dtype, and
their owner sums them in float32. A row is a token with its keys and values side by side: [T, H · (D + Dv)].

Both ways use collectives. `longca_cp.pushed_gather` has the way without them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca.manifests import Layout
from longca_cp.exchange import Arrival, Axis, Order, all_gather, all_to_all, reduce_scatter
from longca_cp.heads import split_heads
from longca_cp.schedules.gathered import gathers_everything

__all__ = ["Collected", "gathering"]

_Ints = NDArray[np.int64]


class Collected(ABC):
    """Keys and values, chunk of heads by chunk, on one of the ways below."""

    def begin(self, *, backward: bool = False) -> None:  # noqa: B027
        """Begins a call. A collective needs no preparation."""

    def gather(self, chunk: int, k: Tensor, v: Tensor) -> Arrival[tuple[Tensor, Tensor]]:
        """Begins to bring this rank the keys and values that it needs, [needed, H, D], from every rank's [T, H, D]."""
        came = self._gather(torch.cat((k.flatten(1), v.flatten(1)), dim=1))
        return Arrival(lambda: _split(came.unpack(), k, v), came.transfer)

    def done(self, chunk: int) -> None:  # noqa: B027
        """The kernel was given the rows of a chunk. Their memory is the caller's."""

    def gradients(self, keys: Tensor, values: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """A buffer for the gradients of needed rows, and its parts for those of keys and of values [needed, H, D]."""
        width = keys.shape[1:].numel() + values.shape[1:].numel()
        rows = keys.new_empty((len(keys), width))
        return rows, _split(rows, keys, values)

    def scatter(self, chunk: int, grads: Tensor, into: tuple[Tensor, Tensor]) -> Callable[[], None]:
        """Begins to bring this rank the sum of all ranks' gradients, given the buffer of those of needed rows.

        The returned function waits for the sums, and fills the buffers of dk and dv: [T, H, D].
        """
        rows = self._scatter(grads)

        def fill() -> None:
            for buffer, total in zip(into, _split(rows.wait(), *into), strict=True):
                buffer.copy_(total)

        return fill

    @abstractmethod
    def _gather(self, rows: Tensor) -> Arrival[Tensor]:
        """Begins to bring this rank its needed rows, [needed, ...], from every rank's [T, ...]."""

    @abstractmethod
    def _scatter(self, rows: Tensor) -> Arrival[Tensor]:
        """Begins to bring this rank the sum [T, ...] of all ranks' gradients for its rows, given [needed, ...]."""


class Everything(Collected):
    """The way that brings all rows to all ranks. Shards are padded to the longest."""

    def __init__(self, axis: Axis, layout: Layout, device: torch.device) -> None:
        self._axis = axis
        sizes = [layout.shard_size(rank) for rank in range(axis.size)]
        self._tokens, self._longest = sizes[axis.index], max(sizes)
        arriving = np.full((axis.size, self._longest), -1, np.int64)
        for rank, size in enumerate(sizes):
            arriving[rank, :size] = layout.positions(rank)
        self._order = Order(arriving.ravel(), _needed(layout, axis.index), device)

    def _gather(self, rows: Tensor) -> Arrival[Tensor]:
        mine = _pad(rows, self._longest)
        everyones = mine.new_empty((self._axis.size * self._longest, *mine.shape[1:]))
        return Arrival(lambda: self._order.ascending(everyones), all_gather(self._axis, everyones, mine))

    def _scatter(self, rows: Tensor) -> Arrival[Tensor]:
        wide = torch.promote_types(rows.dtype, torch.float32)
        everyones = self._order.arriving(rows).to(wide)
        mine = everyones.new_empty((self._longest, *rows.shape[1:]))
        return Arrival(lambda: mine[: self._tokens], reduce_scatter(self._axis, mine, everyones))


class Needed(Collected):
    """The way that brings each rank only the rows it needs."""

    def __init__(self, axis: Axis, layout: Layout, device: torch.device) -> None:
        self._axis = axis
        held = [layout.positions(rank) for rank in range(axis.size)]
        needed = _needed(layout, axis.index)
        coming = [np.intersect1d(each, needed, assume_unique=True) for each in held]
        mine = held[axis.index]
        self._tokens = len(mine)
        self._coming = [len(each) for each in coming]
        going = [np.flatnonzero(np.isin(mine, _needed(layout, rank), assume_unique=True)) for rank in range(axis.size)]
        self._going = [torch.from_numpy(each).to(device) for each in going]
        self._all_going = torch.cat(self._going)
        self._order = Order(np.concatenate(coming), needed, device)

    def _gather(self, rows: Tensor) -> Arrival[Tensor]:
        sent = rows.index_select(0, self._all_going)
        received = sent.new_empty((sum(self._coming), *sent.shape[1:]))
        transfer = all_to_all(self._axis, received, sent, self._coming, [len(each) for each in self._going])
        return Arrival(lambda: self._order.ascending(received), transfer)

    def _scatter(self, rows: Tensor) -> Arrival[Tensor]:
        sent = self._order.arriving(rows)
        received = sent.new_empty((len(self._all_going), *sent.shape[1:]))
        sizes = [len(each) for each in self._going]
        transfer = all_to_all(self._axis, received, sent, sizes, self._coming)

        def unpack() -> Tensor:
            wide = torch.promote_types(received.dtype, torch.float32)
            total = received.new_zeros((self._tokens, *received.shape[1:]), dtype=wide)
            # Rank after rank: each rank sends a row once, so sums have the same order every time.
            for place, part in zip(self._going, received.split(sizes), strict=True):
                total.index_add_(0, place, part.to(wide))
            return total

        return Arrival(unpack, transfer)


def gathering(axis: Axis, layout: Layout, device: torch.device) -> Collected:
    """The cheaper way to gather the rows that a layout's steps need. All ranks find the same."""
    dense = gathers_everything(layout)
    return Everything(axis, layout, device) if dense else Needed(axis, layout, device)


def _split(rows: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The keys and values in rows, for tensors like k and v: [..., H, D] each."""
    keys, values = split_heads(rows, [(x.shape[1], x.shape[2]) for x in (k, v)])
    return keys, values


def _needed(layout: Layout, rank: int) -> _Ints:
    """Positions of the keys of a rank's step, ascending."""
    return np.concatenate([np.arange(0), *(np.arange(*pair) for pair in layout.steps[rank][0].k_ranges)])


def _pad(rows: Tensor, length: int) -> Tensor:
    """Contiguous rows, padded with zeros up to a length."""
    if len(rows) == length:
        return rows.contiguous()
    padded = rows.new_zeros((length, *rows.shape[1:]))
    padded[: len(rows)] = rows
    return padded
