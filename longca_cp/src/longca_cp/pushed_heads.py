"""Pushed heads: the exchange of heads by pushes into the windows of peers, without packing.

Each rank pushes strided slices of its tensors straight to the rows of its tokens, which are ascending over the group.
A kernel then reads from the window. If a rank's tokens are in many ranges, rows travel rank by rank instead, and are
put in order where they arrive. Results for a rank's own tokens come in rank by rank. The copy engine puts them in
place beside the kernel of the next chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca_cp.exchange import Axis, Order
from longca_cp.transports.arena import Arena, Arrival, Place, arena_of, place_bytes
from longca_cp.transports.link import Line, Link, Moves

__all__ = ["PushedHeads", "Puts", "Wait"]

#: The most ranges of one rank's tokens that are pushed one by one. A push takes the host some microseconds, and putting
#: 64 MiB in order takes an H200 some ten.
MOST_RANGES = 16

#: Gives tensors later.
Wait = Callable[[], tuple[Tensor, ...]]
#: From a rank, some of this rank's tokens, and a part [these tokens, some heads, D] of that rank: where its heads go.
Puts = Callable[[int, slice, Tensor], Moves]
#: Rows of a rank that lie one after another among the group's: (first row of the rank, last + 1, first of the group).
_Range = tuple[int, int, int]


class PushedHeads:
    """The exchange within one group of ranks with a link.

    Args:
        axis: The axis of the group.
        link: Its link.
        held: The positions of each member's tokens, in its order.
        order: The order of tokens that arrive rank by rank.
    """

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
        self._arena: Arena | None = None

    def begin(self, coming: Sequence[Tensor], leaving: Sequence[Tensor], chunks: int) -> None:
        """Begins a call.

        Args:
            coming: Tensors [Tl, H, D] of this rank's tokens. Each of them goes to heads once.
            leaving: Tensors [Tl, H, D] of this rank's tokens. Each of them comes back from heads once.
            chunks: Number of chunks of heads.
        """
        if self._arena is None:
            self._arena = arena_of(self._link)
        ranks, tokens = self._axis.size, self._num_tokens
        heads = [((tokens, _each(x, ranks) // chunks, x.shape[2]), x.dtype) for x in coming]
        back = [((ranks, self._longest, _each(x, ranks) // chunks, x.shape[2]), x.dtype) for x in leaving]
        self._arena.begin(chunks * sum(place_bytes(*each) for each in (*heads, *back)))

    def to_heads(self, tensors: Sequence[Tensor], part: Callable[[Tensor, int], Tensor], *, beside: bool) -> Wait:
        """Pushes every rank its heads of this rank's tokens. They were complete when the call began.

        Args:
            tensors: Tensors [Tl, H, D].
            part: From a tensor and a rank to the rank's heads: [Tl, some heads, D].
            beside: Whether a kernel runs meanwhile. A rank then copies its own heads aside, and not after the kernel.

        Returns:
            The function that waits for this rank's heads of the group's tokens in ascending order: [T, some heads, D].
            They are views of the window.
        """
        assert self._arena is not None, "a call has begun"
        mine = self._axis.index
        shapes = [(1, self._num_tokens, *part(x, mine).shape[1:]) for x in tensors]
        places = [self._arena.take(shape, x.dtype) for shape, x in zip(shapes, tensors, strict=True)]

        def moves(rank: int) -> Iterator[tuple[Tensor, Tensor]]:
            for place, shape, x in zip(places, shapes, tensors, strict=True):
                into, source = _rows(place, rank, shape, x.dtype)[0], part(x, rank)
                for first, last, row in self._ranges[mine]:
                    yield into[row : row + last - first], source[first:last]

        wait = self._arena.send(moves, early=True)
        has_own: Callable[[], None] | None = None
        if beside:
            self._link.bring(moves(mine))
            has_own = self._link.brought()
        else:
            self._link.copy(moves(mine))

        def arrived() -> tuple[Tensor, ...]:
            wait("queries, keys or values", Line.KERNELS)
            if has_own is not None:
                has_own()
            came = zip(places, shapes, tensors, strict=True)
            heads = (_rows(place, mine, shape, x.dtype)[0] for place, shape, x in came)
            return tuple(x if self._in_order else self._order.ascending(x) for x in heads)

        return arrived

    def outliving(self, heads: Sequence[Tensor]) -> Wait:
        """The function that begins to copy heads that have arrived, and returns the copies. They are full after `end`.

        The copies run beside the kernels that the current stream is given in between. So their memory is taken now: a
        kernel may still use memory that is freed in between.
        """
        if not self._in_order:
            return lambda: tuple(heads)
        copies = tuple(map(torch.empty_like, heads))
        self._link.aside()

        def begin() -> tuple[Tensor, ...]:
            self._link.bring(zip(copies, heads, strict=True))
            return copies

        return begin

    def to_tokens(self, heads: Tensor, puts: Puts) -> Callable[[], None]:
        """Pushes every rank its tokens of this rank's heads.

        Args:
            heads: [T, some heads, D], in ascending order of tokens.
            puts: Where the heads of each rank go.

        Returns:
            The function that puts the heads of all peers in place. They are there after `end`, as this rank's own are.
        """
        mine, (heads, came, wait) = self._axis.index, self._send_back(heads)
        self._link.aside()
        for first, last, row in self._ranges[mine]:
            self._link.bring(puts(mine, slice(first, last), heads[row : row + last - first]))

        def arrived() -> None:
            wait("outputs or gradients", Line.ASIDE)
            for peer in self._link.peers:
                self._link.bring(puts(peer, slice(None), came[peer]))

        return arrived

    def to_sums(self, heads: Tensor) -> Wait:
        """Pushes every rank its tokens of this rank's heads, where several ranks have the same head.

        Args:
            heads: [T, some heads, D], in ascending order of tokens.

        Returns:
            The function that waits for the heads of this rank's tokens that each rank has: [ranks, Tl, some heads, D].
            They are a view of the window.
        """
        mine, (heads, came, wait) = self._axis.index, self._send_back(heads)
        self._link.copy(
            (came[mine][first:last], heads[row : row + last - first]) for first, last, row in self._ranges[mine]
        )

        def arrived() -> tuple[Tensor, ...]:
            wait("outputs or gradients", Line.KERNELS)
            return (came,)

        return arrived

    def _send_back(self, heads: Tensor) -> tuple[Tensor, Tensor, Arrival]:
        """Pushes every peer its tokens of this rank's heads.

        Returns:
            The heads in the order of `_ranges`, the place of those that come from each rank, and the wait for them.
        """
        assert self._arena is not None, "a call has begun"
        heads = heads if self._in_order else self._order.arriving(heads)
        mine, (some, width) = self._axis.index, heads.shape[1:]
        shapes = [(self._axis.size, tokens, some, width) for tokens in self._tokens]
        place = self._arena.take((self._axis.size, self._longest, some, width), heads.dtype)

        def moves(peer: int) -> Iterator[tuple[Tensor, Tensor]]:
            into = _rows(place, peer, shapes[peer], heads.dtype)[mine]
            for first, last, row in self._ranges[peer]:
                yield into[first:last], heads[row : row + last - first]

        wait = self._arena.send(moves)
        return heads, _rows(place, mine, shapes[mine], heads.dtype), wait

    def end(self) -> None:
        """Ends a call."""
        assert self._arena is not None, "a call has begun"
        self._arena.end()


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


def _each(x: Tensor, ranks: int) -> int:
    """Heads of a tensor that one rank has."""
    return max(x.shape[1] // ranks, 1)
