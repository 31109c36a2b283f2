"""Pushed gather: each rank pushes exactly the rows that a peer needs straight to their places in the peer's window.

Rows arrive in ascending order, so nothing puts them in order afterwards. A rank whose rows would come in too many runs
gets them packed, rank by rank, and puts them in order itself. In a window keys
[T, H, D] and values [T, H, Dv] lie apart, so that kernels read them contiguously.

Gradients go back to the owner of each row in the kernel's dtype. The owner adds them up in float32 (float64 for
float64), in the order of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca.kernels.base import torch_device
from longca.manifests import Layout, Problem
from longca_cp import runs
from longca_cp.exchange import Arrival, Axis
from longca_cp.heads import split_kv
from longca_cp.inbox import Request
from longca_cp.runs import Arrangement, Pieces, Pushes, Runs, index_of, pieces, slices_of
from longca_cp.transports.link import Link

__all__ = ["GradientSum", "PushedRows"]

_Ints = NDArray[np.int64]

#: The most lengths of the windows of one mask length.
_ROOMS = 8


class GradientSum:
    """The sum of the gradients that ranks have for this rank's rows, given the runs of each rank's part in order."""

    def __init__(self, parts: Sequence[Runs], tokens: int, device: torch.device) -> None:
        ends = [np.r_[each.into, each.into + each.length] for each in parts]
        bounds = np.unique(np.concatenate([np.array([0, tokens]), *ends]))
        self._segments: list[tuple[slice, list[tuple[int, slice]]]] = []
        self._rows: list[tuple[Tensor, Tensor]] = []
        if len(bounds) - 1 <= runs.MOST_RUNS:
            places = slices_of(bounds[:-1], np.diff(bounds))
            self._segments = [(place, list(_terms(parts, place))) for place in places]
        else:
            self._rows = [
                (index_of(each.into, each.length, device), index_of(each.source, each.length, device)) for each in parts
            ]

    def add(self, parts: Sequence[Tensor], into: Tensor) -> None:
        """Fills [T, H, D] with the sum of each rank's part, [rows, H, D], in the order of ranks."""
        wide = torch.promote_types(into.dtype, torch.float32)
        for place, terms in self._segments:
            _sum_into(into[place], [parts[rank][rows] for rank, rows in terms], wide)
        if self._rows:
            total = torch.zeros(into.shape, dtype=wide, device=into.device)
            for (places, rows), part in zip(self._rows, parts, strict=True):
                total.index_add_(0, places, part.index_select(0, rows).to(wide))
            into.copy_(total)


def _terms(parts: Sequence[Runs], place: slice) -> Iterator[tuple[int, slice]]:
    """The ranks whose parts have rows for a place inside one run, and these rows."""
    for rank, each in enumerate(parts):
        order = np.argsort(each.into)
        at = int(np.searchsorted(each.into[order], place.start, side="right")) - 1
        if at >= 0 and place.start < (each.into + each.length)[order[at]]:
            first = int(each.source[order[at]] + place.start - each.into[order[at]])
            yield rank, slice(first, first + place.stop - place.start)


def _sum_into(into: Tensor, terms: Sequence[Tensor], wide: torch.dtype) -> None:
    """Adds terms up one after another in the wide dtype. Only the last addition rounds to the dtype of `into`."""
    if not terms:
        into.zero_()
        return
    if len(terms) == 1:
        into.copy_(terms[0])
        return
    total = terms[0]
    for term in terms[1:-1]:
        total = total.to(wide) + term
    torch.add(total, terms[-1], out=into)


def _room(rows: int, most: int) -> int:
    """Rows of a window, in steps, so that masks that need other rows at every step share few windows."""
    step = max(1, -(-most // _ROOMS))
    return min(most, -(-rows // step) * step)


class PushedRows:
    """The way that pushes. It has the methods of `longca_cp.kv_gather.Collected`, for a layout of one step a rank."""

    def __init__(self, axis: Axis, link: Link, problem: Problem, layout: Layout, chunks: int) -> None:
        self._axis, self._chunks, me, device = axis, chunks, axis.index, torch_device(problem.device)
        dtype = getattr(torch, problem.dtype)
        needs = [pieces(layout.shards, steps[0].k_ranges) for steps in layout.steps]
        # Rows of each owner that each rank needs: [owners, ranks].
        rows = np.array([np.bincount(each.owner, each.length, axis.size) for each in needs]).astype(np.int64).T
        others = rows * ~np.eye(axis.size, dtype=np.bool_)
        arranged = [Arrangement(each, axis.size) for each in needs]
        self._order = arranged[me].order(device)
        self._there = [Pushes(each.runs(me), device) for each in arranged]
        self._needed, self._returned = rows.sum(0).tolist(), others.sum(1).tolist()
        peers = [*range(me + 1, axis.size), *range(me), me]  # its own rows last
        self._readers = [reader for reader in peers if rows[me, reader]]
        self._owners = [owner for owner in peers if others[owner, me]]
        self._sources = [np.flatnonzero(rows[:, me]).tolist()] * chunks
        self._senders = [np.flatnonzero(others[me]).tolist()] * chunks
        row = problem.num_heads_kv // chunks * sum(problem.dims)
        shard = max(map(layout.shard_size, range(axis.size)))
        needed = _room(max(self._needed), layout.num_tokens)
        returned = _room(max(self._returned), (axis.size - 1) * shard)
        self._keys = Request(link, "keys and values", needed * row, dtype, chunks)
        self._parts = Request(link, "gradients", returned * row, dtype, chunks)
        self._back, self._sum = _ways_back(axis, needs, others, layout.shard_size(me), device)

    @property
    def packs(self) -> bool:
        """Whether rows for some reader are packed."""
        return any(each.packs for each in self._there)

    def begin(self, *, backward: bool = False) -> None:
        """Begins a call."""
        if (keys := self._keys.inbox) is not None:
            keys.begin(self._sources)
        if backward and (parts := self._parts.inbox) is not None:
            parts.begin(self._senders)

    def gather(self, chunk: int, k: Tensor, v: Tensor) -> Arrival[tuple[Tensor, Tensor]]:
        """Begins to bring this rank the keys and values that it needs, [needed, H, D], from every rank's [T, H, D]."""
        if (box := self._keys.inbox) is not None:
            for reader in self._readers:
                box.put(reader, chunk, partial(self._pushes, reader, (k, v)), early=not self._there[reader].packs)
        return Arrival(partial(self._arrive, chunk, k, v))

    def done(self, chunk: int) -> None:
        """The kernel has read the rows of a chunk, so that the next chunk may have their slot."""
        if (box := self._keys.inbox) is not None:
            box.release(chunk)
            if chunk == self._chunks - 1:
                box.joined()

    def gradients(self, keys: Tensor, values: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """A buffer for the gradients of needed rows, and its parts for those of keys and of values [needed, H, D]."""
        buffer = keys.new_empty(keys.numel() + values.numel())
        return buffer, split_kv(buffer, len(keys), (keys.shape[1:], values.shape[1:]))

    def scatter(self, chunk: int, grads: Tensor, into: tuple[Tensor, Tensor]) -> Callable[[], None]:
        """Begins to bring this rank the sum of all ranks' gradients for its rows. See `Collected.scatter`."""
        if (box := self._parts.inbox) is not None:
            box.joined()  # the gradients of the chunk before are free
            for owner in self._owners:
                box.put(owner, chunk, partial(self._returns, owner, grads, into))
        return partial(self._add_up, chunk, grads, into)

    def _pushes(self, reader: int, kv: tuple[Tensor, Tensor], slot: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for into, x in zip(_rows(slot, self._needed[reader], kv), kv, strict=True):
            yield from self._there[reader](into, x)

    def _returns(
        self, owner: int, grads: Tensor, like: tuple[Tensor, Tensor], slot: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        mine = _rows(grads, self._needed[self._axis.index], like)
        for into, x in zip(_rows(slot, self._returned[owner], like), mine, strict=True):
            yield from self._back[owner](into, x)

    def _arrive(self, chunk: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if (box := self._keys.inbox) is None:
            return k[:0], v[:0]
        keys, values = _rows(box.take(chunk), self._needed[self._axis.index], (k, v))
        if self._order is None:
            return keys, values
        return keys.index_select(0, self._order), values.index_select(0, self._order)

    def _add_up(self, chunk: int, grads: Tensor, into: tuple[Tensor, Tensor]) -> None:
        me = self._axis.index
        mine = arrived = _rows(grads, self._needed[me], into)
        if (box := self._parts.inbox) is not None:
            arrived = _rows(box.take(chunk), self._returned[me], into)
        for total, own, others in zip(into, mine, arrived, strict=True):
            self._sum.add([own if rank == me else others for rank in range(self._axis.size)], total)
        if box is not None:
            box.release(chunk)
            if chunk == self._chunks - 1:
                box.joined()


def _ways_back(
    axis: Axis, needs: Sequence[Pieces], others: _Ints, tokens: int, device: torch.device
) -> tuple[list[Pushes], GradientSum]:
    """The pushes of gradients to each owner, and the sum of those that come to this rank.

    A rank's part lies packed in the owner's slot, after the parts of the ranks before it.
    """
    first, me = np.cumsum(others, axis=1) - others, axis.index
    mine = [needs[me].of(owner) for owner in range(axis.size)]
    back = [
        Pushes(Runs(each.needed, first[owner, me] + each.packed, each.length), device)
        for owner, each in enumerate(mine)
    ]
    coming = [(each.of(me), first[me, rank]) for rank, each in enumerate(needs)]
    parts = [
        Runs(each.needed if rank == me else start + each.packed, each.held, each.length)
        for rank, (each, start) in enumerate(coming)
    ]
    return back, GradientSum(parts, tokens, device)


def _rows(slot: Tensor, count: int, like: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The keys and values of so many rows of a slot, for tensors [..., H, D] and [..., H, Dv]."""
    return split_kv(slot, count, (like[0].shape[1:], like[1].shape[1:]))
