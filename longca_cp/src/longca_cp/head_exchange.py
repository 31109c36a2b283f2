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
from numpy.typing import NDArray
from torch import Tensor

from longca.manifests import Layout
from longca_cp.exchange import Arrival, Axis, Order, all_to_all
from longca_cp.heads import chunk_of, put_chunk, split_heads, take_apart
from longca_cp.pushed_heads import PushedHeads

__all__ = ["HeadExchange", "beside", "by_token", "head_exchange"]


class HeadsByCollectives:
    """The exchange of heads within one group of ranks, given the positions of each member's tokens, in its order."""

    pushes = False

    def __init__(self, axis: Axis, held: Sequence[NDArray[np.int64]], order: Order) -> None:
        self._axis, self._order = axis, order
        self._tokens = [len(each) for each in held]

    def begin(self, coming: Sequence[Tensor], leaving: Sequence[Tensor], chunks: int = 1) -> None:
        """Begins a call, given tensors of the shapes that go to heads and of those that go back to tokens.

        All ranks of the group begin it together, with a rank's heads in so many chunks. Until `end`, tensors that have
        arrived may lie in a window.
        """

    def end(self) -> None:
        """Ends a call."""

    def outliving(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Tensors that have arrived, as ones that outlive the call."""
        return tuple(tensors)

    def to_heads(self, tensors: Sequence[Tensor], chunks: int = 1) -> Callable[[int], Arrival[tuple[Tensor, ...]]]:
        """Prepares to send every rank its heads of this rank's tokens, given tensors [Tl, H, D], whose H may differ.

        It returns the function that sends a chunk of a rank's heads, in order. This returns, for each tensor, this
        rank's heads of the group's tokens in ascending order, on their way: [T, H / ranks / chunks, D]. Their last dim
        is contiguous.
        """

        def send(chunk: int) -> Arrival[tuple[Tensor, ...]]:
            ranks, parts = self._axis.size, []
            for x in tensors:
                part = take_apart(x, ranks)
                parts.append(part[:, :, chunk_of(part.shape[2], chunk, chunks)])
            shapes = [(part.shape[2], part.shape[3]) for part in parts]
            sent = torch.cat([part.flatten(2) for part in parts], dim=2).flatten(0, 1)  # [ranks · Tl, all heads' D]
            mine = self._tokens[self._axis.index]
            received = sent.new_empty((sum(self._tokens), *sent.shape[1:]))
            transfer = all_to_all(self._axis, received, sent, self._tokens, [mine] * ranks)
            return Arrival(lambda: tuple(split_heads(self._order.ascending(received), shapes)), transfer)

        return send

    def to_tokens(
        self, results: Sequence[tuple[Tensor, Sequence[Tensor]]], chunk: int = 0, chunks: int = 1
    ) -> Callable[[], None]:
        """Sends every rank its tokens of this rank's heads. The returned function waits for the heads of all ranks.

        A result has this rank's heads side by side, for the group's tokens in ascending order: [T, H / ranks, D], or
        [T, 1, sum of H · D / ranks] for several tensors. With it come the buffers of all heads of this rank's tokens,
        which are filled: [Tl, H, D].
        """
        waits = [self._to_tokens(heads, into, chunk, chunks).wait for heads, into in results]

        def wait() -> None:
            for each in waits:
                each()

        return wait

    def _to_tokens(self, heads: Tensor, into: Sequence[Tensor], chunk: int, chunks: int) -> Arrival[None]:
        ranks, mine = self._axis.size, self._tokens[self._axis.index]
        sent = self._order.arriving(heads)
        received = sent.new_empty((ranks, mine, *sent.shape[1:]))
        transfer = all_to_all(self._axis, received.flatten(0, 1), sent, [mine] * ranks, self._tokens)
        return Arrival(lambda: put_chunk(received, into, ranks, chunk, chunks), transfer)


HeadExchange = HeadsByCollectives | PushedHeads


def head_exchange(axis: Axis, layout: Layout, members: Sequence[int], device: torch.device) -> HeadExchange:
    """The exchange within one group of ranks, the members of a layout."""
    held = [layout.positions(member) for member in members]
    joined = np.concatenate(held)
    order = Order(joined, np.sort(joined), device)
    return HeadsByCollectives(axis, held, order) if axis.link is None else PushedHeads(axis, axis.link, held, order)


def by_token(lse: Tensor) -> Tensor:
    """A log-sum-exp as a tensor of tokens, for an exchange: the view [T, H, 1] of [H, T]."""
    return lse.T[..., None]


def beside(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """A buffer for three gradients side by side, which are sent together: [T, 1, all heads' D]. And its three parts."""
    shapes = [(x.shape[1], x.shape[2]) for x in (q, k, v)]
    joined = q.new_empty((q.shape[0], 1, sum(heads * dim for heads, dim in shapes)))
    dq, dk, dv = split_heads(joined[:, 0], shapes)
    return joined, (dq, dk, dv)
