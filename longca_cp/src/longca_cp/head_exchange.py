"""Head exchange: from some tokens of all heads to all tokens of some heads, and back.

Collectives do it by one all-to-all each, and copies before and after. An axis with a link does it by pushes, as
`longca_cp.pushed_heads` describes.

DeepSpeed Ulysses (arXiv 2309.14509) splits attention in this way, and so does the head-parallel half of USP and
LoongTrain. Rank r of n has the r-th of n equal parts of the heads. If there are fewer heads than ranks, n / H
neighbouring ranks have the same head, and results for it are summed over these ranks. Only KV heads can be that few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from longca.manifests import Layout
from longca_cp.exchange import Arrival, Axis, Order, all_to_all
from longca_cp.heads import chunk_of, each
from longca_cp.pushed_heads import PushedHeads

__all__ = ["HeadExchange", "beside", "by_token", "put_together", "take_apart"]


class HeadExchange:
    """The exchange of heads within one group of ranks, the members of a layout.

    A call begins with `begin` and ends with `end`. In between, tensors that have arrived may lie in a window.
    """

    def __init__(self, axis: Axis, layout: Layout, members: Sequence[int], device: torch.device) -> None:
        self._axis = axis
        self._tokens = [layout.shard_size(member) for member in members]
        held = [layout.positions(member) for member in members]
        joined = np.concatenate(held)
        self._order = Order(joined, np.sort(joined), device)
        self._pushed = None if axis.link is None else PushedHeads(axis, axis.link, held, self._order)

    @property
    def pushes(self) -> bool:
        """Whether pushes move the tensors."""
        return self._pushed is not None

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the group."""
        return sum(self._tokens)

    def begin(self, coming: Sequence[Tensor], leaving: Sequence[Tensor], chunks: int = 1) -> None:
        """Begins a call, given tensors of the shapes that go to heads and of those that go back to tokens.

        All ranks of the group begin it together, with a rank's heads in so many chunks.
        """
        if self._pushed is not None:
            self._pushed.begin(coming, leaving, chunks)

    def end(self) -> None:
        """Ends a call."""
        if self._pushed is not None:
            self._pushed.end()

    def outliving(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Tensors that have arrived, as ones that outlive the call."""
        return tuple(tensors) if self._pushed is None else self._pushed.outliving(tensors)

    def to_heads(self, tensors: Sequence[Tensor], chunks: int = 1) -> Callable[[int], Arrival[tuple[Tensor, ...]]]:
        """Prepares to send every rank its heads of this rank's tokens, given tensors [Tl, H, D], whose H may differ.

        It returns the function that sends a chunk of a rank's heads, in order. This returns, for each tensor, this
        rank's heads of the group's tokens in ascending order, on their way: [T, H / ranks / chunks, D]. Their last dim
        is contiguous.
        """
        if self._pushed is not None:
            send = self._pushed.to_heads(tensors, chunks)
            return lambda chunk: Arrival(send(chunk))
        return lambda chunk: self._all_to_heads(tensors, chunk, chunks)

    def _all_to_heads(self, tensors: Sequence[Tensor], chunk: int, chunks: int) -> Arrival[tuple[Tensor, ...]]:
        """Sends a part of the heads by an all-to-all."""
        ranks, parts = self._axis.size, []
        for x in tensors:
            part = take_apart(x, ranks)
            parts.append(part[:, :, chunk_of(part.shape[2], chunk, chunks)])
        widths = [part.shape[2] for part in parts]
        sent = torch.cat(parts, dim=2).flatten(0, 1)  # [ranks · Tl, all tensors' heads, D]
        mine = self._tokens[self._axis.index]
        received = sent.new_empty((self.num_tokens, *sent.shape[1:]))
        transfer = all_to_all(self._axis, received, sent, self._tokens, [mine] * ranks)
        return Arrival(lambda: self._order.ascending(received).split(widths, dim=1), transfer)

    def to_tokens(
        self, results: Sequence[tuple[Tensor, Sequence[Tensor]]], chunk: int = 0, chunks: int = 1
    ) -> Callable[[], None]:
        """Sends every rank its tokens of this rank's heads. It returns the function that waits for the heads of all
        ranks.

        A result has this rank's heads side by side, for the group's tokens in ascending order: [T, sum of H / ranks,
        D]. With it come the buffers of all heads of this rank's tokens, which are filled: [Tl, H, D].
        """
        ranks = self._axis.size
        if self._pushed is None:
            waits = [self._all_to_tokens(heads, into, chunk, chunks) for heads, into in results]
            return lambda: _all(waits)
        if min(x.shape[1] for _, into in results for x in into) >= ranks:
            return self._pushed.to_tokens([x for x, _ in results], [into for _, into in results], chunk, chunks)
        ((heads, into),) = results  # several ranks have one KV head, so that there are gradients of one chunk
        wait = self._pushed.to_sums(heads)
        return lambda: _put(wait()[0], into, ranks, chunk, chunks)

    def _all_to_tokens(self, heads: Tensor, into: Sequence[Tensor], chunk: int, chunks: int) -> Callable[[], None]:
        """Sends a result by an all-to-all."""
        ranks = self._axis.size
        sent = self._order.arriving(heads)
        mine = self._tokens[self._axis.index]
        received = sent.new_empty((ranks, mine, *sent.shape[1:]))
        transfer = all_to_all(self._axis, received.flatten(0, 1), sent, [mine] * ranks, self._tokens)

        def arrived() -> None:
            transfer.wait()
            _put(received, into, ranks, chunk, chunks)

        return arrived


def _all(waits: Sequence[Callable[[], None]]) -> None:
    for wait in waits:
        wait()


def _put(received: Tensor, into: Sequence[Tensor], ranks: int, chunk: int, chunks: int) -> None:
    """Puts a chunk of every rank's heads, [ranks, Tl, some heads, D], into the buffers."""
    sizes = [each(x.shape[1], ranks) for x in into]
    parts = received.split([size // chunks for size in sizes], dim=2)
    for part, x, size in zip(parts, into, sizes, strict=True):
        put_together(part, x, chunk_of(size, chunk, chunks))


def by_token(lse: Tensor) -> Tensor:
    """A log-sum-exp as a tensor of tokens, for an exchange: the view [T, H, 1] of [H, T]."""
    return lse.T[..., None]


def beside(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """A buffer for three gradients side by side, which are sent together: [T, Hq + 2 · Hkv, D]. And its three parts."""
    joined = q.new_empty((q.shape[0], q.shape[1] + 2 * k.shape[1], q.shape[2]))
    dq, dk, dv = joined.split([q.shape[1], k.shape[1], v.shape[1]], dim=1)
    return joined, (dq, dk, dv)


def take_apart(x: Tensor, ranks: int) -> Tensor:
    """Every rank's heads: [ranks, T, H / ranks, D] of [T, H, D]. It is a view, unless several ranks have one head."""
    heads = x.shape[1]
    if heads < ranks:
        x = x.repeat_interleave(ranks // heads, dim=1)
    return x.unflatten(1, (ranks, -1)).transpose(0, 1)


def put_together(parts: Tensor, into: Tensor, chunk: slice) -> None:
    """Puts some heads that come back from every rank, [ranks, T, chunk, D], into their place in [T, H, D].

    `chunk` is their place among a rank's heads.
    """
    ranks, heads = parts.shape[0], into.shape[1]
    if heads < ranks:
        wide = torch.promote_types(parts.dtype, torch.float32)
        copies = parts.unflatten(0, (heads, -1))[:, :, :, 0]  # [H, ranks / H, T, D]
        into.copy_(copies.sum(1, dtype=wide).transpose(0, 1))
    else:
        into.unflatten(1, (ranks, -1)).transpose(0, 1)[:, :, chunk].copy_(parts)
