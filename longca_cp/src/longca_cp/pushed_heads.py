"""Pushed heads: the exchange of heads by pushes into the windows of peers, without packing.

Each rank pushes strided slices of its tensors straight to the rows of its tokens, which are ascending over the group.
A kernel then reads from the window. If a rank's tokens are in many ranges, rows travel rank by rank instead, and are
put in order where they arrive. Results for a rank's own tokens come in rank by rank.

Copies within a rank take multiprocessors. So they are made when no attention runs: a rank's own heads of all chunks
while the first chunk is on its way, and results after the last chunk's kernel, while the last results are on their way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca_cp.exchange import Arrival, Axis, Order
from longca_cp.heads import each, heads_of, put_chunk, split_heads
from longca_cp.transports.arena import Arena, Place, arena_of, place_bytes
from longca_cp.transports.link import Link
from longca_cp.transports.strided import View, copy_words, shape_key

__all__ = ["PushedHeads"]

#: The most ranges of one rank's tokens that are pushed one by one. A push takes the host some microseconds, and putting
#: 64 MiB in order takes an H200 some ten.
MOST_RANGES = 16

#: Rows of a rank that lie one after another among the group's: (first row of the rank, last + 1, first of the group).
_Range = tuple[int, int, int]
#: A view of the window, the number of a tensor, and the view of it that goes there.
_Into = tuple[Tensor, int, View]
#: The number of a tensor, and a view of it.
_Of = tuple[int, View]
#: Tells the exchanges of an arena apart.
_NUMBERS = count()


@dataclass(frozen=True, eq=False)
class _ToHeads:
    """How tensors go to heads."""

    nbytes: int  # of the arena
    pushes: list[list[list[_Into]]]  # for each chunk and rank, what goes there
    own: list[_Into]  # what goes to this rank itself, of all chunks
    arrived: list[tuple[Tensor, ...]]  # for each chunk, where this rank's heads arrive


@dataclass(frozen=True, eq=False)
class _ToTokens:
    """How results go to tokens."""

    nbytes: int  # of the arena
    pushes: list[list[_Into]]  # for each rank, what goes there
    own: list[tuple[_Of, _Of]]  # where this rank's own heads go, and where they are
    peers: list[tuple[_Of, Tensor]]  # where the heads of peers go, and where they arrive
    arrived: tuple[Tensor, ...]  # for each result, where all ranks' heads of this rank's tokens arrive


class PushedHeads:
    """The exchange within one group of ranks with a link. It has the methods of `head_exchange.HeadsByCollectives`."""

    pushes = True

    def __init__(self, axis: Axis, link: Link, held: Sequence[NDArray[np.int64]], order: Order) -> None:
        self._axis, self._link, self._order = axis, link, order
        self._tokens = [len(each) for each in held]
        self._num_tokens, self._longest = sum(self._tokens), max(self._tokens)
        everything = np.sort(np.concatenate(held))
        ranges = [_ranges(np.searchsorted(everything, each)) for each in held]
        self._in_order = max(map(len, ranges)) <= MOST_RANGES
        starts = np.cumsum([0, *self._tokens[:-1]])
        by_rank = [[(0, tokens, int(start))] for tokens, start in zip(self._tokens, starts, strict=True)]
        self._ranges: list[list[_Range]] = ranges if self._in_order else by_rank
        self._number = next(_NUMBERS)

    @cached_property
    def _arena(self) -> Arena:
        """The arena, which all ranks ask for together as they begin their first call."""
        return arena_of(self._link)

    def begin(self, coming: Sequence[Tensor], leaving: Sequence[Tensor], chunks: int = 1) -> None:
        """Begins a call, given tensors [Tl, H, D] of the shapes that go to heads and of those that come back."""
        back = [(self._back_shape(each(x.shape[1], self._axis.size) // chunks, x.shape[2]), x.dtype) for x in leaving]
        there = sum(place_bytes(self._heads_shape(x, chunks), x.dtype) for x in coming)
        self._arena.begin(there + chunks * sum(place_bytes(*every) for every in back))

    def to_heads(self, tensors: Sequence[Tensor], chunks: int = 1) -> Callable[[int], Arrival[tuple[Tensor, ...]]]:
        """Prepares to push heads of tensors that were complete when the call began. Heads arrive as views of the
        window.
        """
        arena, begin = self._arena, self._arena.taken
        key = self._number, begin, chunks, *map(shape_key, tensors)
        way = arena.once(key, lambda: self._to_heads(tensors, chunks))
        arena.taken = begin + way.nbytes

        def send(chunk: int) -> Arrival[tuple[Tensor, ...]]:
            pushes = way.pushes[chunk]
            wait = arena.send(lambda rank: [(into, view(tensors[at])) for into, at, view in pushes[rank]], early=True)
            if chunk == 0:
                self._link.copy((into, view(tensors[at])) for into, at, view in way.own)

            def arrived() -> tuple[Tensor, ...]:
                wait("queries, keys or values")
                heads = way.arrived[chunk]
                return heads if self._in_order else tuple(map(self._order.ascending, heads))

            return Arrival(arrived)

        return send

    def _to_heads(self, tensors: Sequence[Tensor], chunks: int) -> _ToHeads:
        begin, mine, ranks = self._arena.taken, self._axis.index, self._axis.size
        shapes = [self._heads_shape(x, chunks) for x in tensors]
        places = [self._arena.take(shape, x.dtype) for shape, x in zip(shapes, tensors, strict=True)]
        windows = [
            [_rows(place, rank, shape, x.dtype) for place, shape, x in zip(places, shapes, tensors, strict=True)]
            for rank in range(ranks)
        ]

        def pushes(rank: int, some: int | slice) -> Iterator[_Into]:
            for at, x in enumerate(tensors):
                into, part = windows[rank][at][some], heads_of(x, rank, ranks, chunks)[some]
                for first, last, row in self._ranges[mine]:
                    yield into[..., row : row + last - first, :, :], at, View.of(x, part[..., first:last, :, :])

        return _ToHeads(
            self._arena.taken - begin,
            [[list(pushes(rank, chunk)) for rank in range(ranks)] for chunk in range(chunks)],
            list(pushes(mine, slice(None))),
            [tuple(window[chunk] for window in windows[mine]) for chunk in range(chunks)],
        )

    def outliving(self, heads: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Heads that have arrived, as tensors that outlive the call."""
        if not self._in_order:
            return tuple(heads)
        copies = tuple(map(torch.empty_like, heads))
        self._link.copy(zip(copies, heads, strict=True))
        return copies

    def to_tokens(
        self, results: Sequence[tuple[Tensor, Sequence[Tensor]]], chunk: int = 0, chunks: int = 1
    ) -> Callable[[], None]:
        """Pushes every rank its tokens of this rank's heads. The returned function puts all ranks' heads in place."""
        if min(x.shape[1] for _, into in results for x in into) < self._axis.size:
            return self._to_sums(results, chunk, chunks)
        into = [some for _, some in results]
        targets = [x for some in into for x in some]
        tensors, way, wait = self._send_back([heads for heads, _ in results], into, targets, chunk, chunks)

        def arrived() -> None:
            for (there, put), (here, take) in way.own:
                copy_words(put(targets[there]), take(tensors[here]))
            wait("outputs or gradients")
            for (there, put), came in way.peers:
                copy_words(put(targets[there]), came)

        return arrived

    def _to_sums(
        self, results: Sequence[tuple[Tensor, Sequence[Tensor]]], chunk: int, chunks: int
    ) -> Callable[[], None]:
        """The same where several ranks have one KV head, so that there are gradients of one chunk."""
        ((heads, into),), mine = results, self._axis.index
        tensors, way, wait = self._send_back([heads], [[]], [], 0, 1)
        self._link.copy((there, view(tensors[at])) for there, at, view in way.pushes[mine])

        def arrived() -> None:
            wait("outputs or gradients")
            put_chunk(way.arrived[0], into, self._axis.size, chunk, chunks)

        return arrived

    def _send_back(
        self,
        results: Sequence[Tensor],
        into: Sequence[Sequence[Tensor]],
        targets: Sequence[Tensor],
        chunk: int,
        chunks: int,
    ) -> tuple[Sequence[Tensor], _ToTokens, Callable[[str], None]]:
        """Pushes results to every peer: results in the order of `_ranges`, their way, and the wait for peers."""
        tensors = results if self._in_order else [self._order.arriving(x) for x in results]
        arena, begin = self._arena, self._arena.taken
        key = self._number, begin, chunk, chunks, *map(shape_key, (*tensors, *targets))
        way = arena.once(key, lambda: self._to_tokens(tensors, into, chunk, chunks))
        arena.taken, pushes = begin + way.nbytes, way.pushes
        wait = arena.send(lambda peer: [(into, view(tensors[at])) for into, at, view in pushes[peer]])
        return tensors, way, wait

    def _to_tokens(
        self, tensors: Sequence[Tensor], into: Sequence[Sequence[Tensor]], chunk: int, chunks: int
    ) -> _ToTokens:
        begin, mine, ranks = self._arena.taken, self._axis.index, self._axis.size
        places = [self._arena.take(self._back_shape(x.shape[1], x.shape[2]), x.dtype) for x in tensors]

        def window(rank: int, at: int) -> Tensor:
            x, shape = tensors[at], (ranks, self._tokens[rank], *tensors[at].shape[1:])
            return _rows(places[at], rank, shape, x.dtype)

        def pushes(rank: int) -> Iterator[_Into]:
            for at, x in enumerate(tensors):
                there = window(rank, at)[mine]
                for first, last, row in self._ranges[rank]:
                    yield there[first:last], at, View.of(x, x[row : row + last - first])

        def puts(rank: int, at: int, rows: slice, part: Tensor) -> Iterator[tuple[_Of, Tensor]]:
            first = sum(map(len, into[:at]))
            shapes = [(each(x.shape[1], ranks) // chunks, x.shape[2]) for x in into[at]]
            parts = split_heads(part.flatten(1), shapes) if len(shapes) > 1 else [part]
            for number, (x, heads) in enumerate(zip(into[at], parts, strict=True), first):
                yield (number, View.of(x, heads_of(x, rank, ranks, chunks)[chunk, rows])), heads

        own, peers = list[tuple[_Of, _Of]](), list[tuple[_Of, Tensor]]()
        for at, x in enumerate(tensors):
            if into[at]:
                for first, last, row in self._ranges[mine]:
                    there = puts(mine, at, slice(first, last), x[row : row + last - first])
                    own += [(target, (at, View.of(x, heads))) for target, heads in there]
                for peer in self._link.peers:
                    peers += puts(peer, at, slice(None), window(mine, at)[peer])
        arrived = tuple(window(mine, at) for at in range(len(tensors)))
        return _ToTokens(self._arena.taken - begin, [list(pushes(rank)) for rank in range(ranks)], own, peers, arrived)

    def end(self) -> None:
        """Ends a call."""
        self._arena.end()

    def _heads_shape(self, x: Tensor, chunks: int) -> tuple[int, ...]:
        """The shape of the place where a tensor's heads arrive."""
        return chunks, self._num_tokens, each(x.shape[1], self._axis.size) // chunks, x.shape[2]

    def _back_shape(self, heads: int, width: int) -> tuple[int, ...]:
        """The shape of the place where some heads of each rank arrive."""
        return self._axis.size, self._longest, heads, width


def _rows(place: Place, index: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor [parts, T, H, D] in a place. With D of 1 its tokens lie side by side, as those of a log-sum-exp do."""
    if shape[-1] > 1:
        return place.of(index, shape, dtype)
    parts, tokens, heads, _ = shape
    return place.of(index, (parts, heads, tokens), dtype).transpose(1, 2)[..., None]


def _ranges(rows: NDArray[np.int64]) -> list[_Range]:
    """The ranges of a rank's tokens, given the row of each among the group's."""
    if not len(rows):
        return []
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    edges = zip([0, *cuts.tolist()], [*cuts.tolist(), len(rows)], strict=True)
    return [(first, last, int(rows[first])) for first, last in edges]
