"""Head exchange: from some tokens of all heads to all tokens of some heads, and back, by one all-to-all each.

This is how DeepSpeed Ulysses (arXiv 2309.14509) splits attention, and the head-parallel half of USP and LoongTrain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from longca.manifests import Layout
from longca_cp.exchange import Transfer, all_to_all
from longca_cp.heads import each, put_together, take_apart
from longca_cp.mesh import Axis
from longca_cp.order import Order

__all__ = ["Arrival", "HeadExchange", "beside", "by_token"]


@dataclass
class Arrival:
    """Tensors on their way.

    Attributes:
        transfer: What moves them.
        unpack: Makes them of what was received.
    """

    transfer: Transfer
    unpack: Callable[[], tuple[Tensor, ...]]

    def wait(self) -> tuple[Tensor, ...]:
        """The tensors, when they are there."""
        self.transfer.wait()
        return self.unpack()


class HeadExchange:
    """The exchange within one group of ranks.

    Args:
        axis: The group.
        layout: Who holds what.
        members: The group's ranks in the layout.
        device: Where the tensors are.
    """

    def __init__(self, axis: Axis, layout: Layout, members: Sequence[int], device: torch.device) -> None:
        self._axis = axis
        self._tokens = [layout.shard_size(member) for member in members]
        held = np.concatenate([layout.positions(member) for member in members])
        self._order = Order(held, np.sort(held), device)

    @property
    def num_tokens(self) -> int:
        """Tokens of the group together."""
        return sum(self._tokens)

    def to_heads(self, tensors: Sequence[Tensor], chunk: int = 0, chunks: int = 1) -> Arrival:
        """Sends every rank its heads of this rank's tokens.

        Args:
            tensors: [Tl, H, D] each; H may differ.
            chunk: Which part of a rank's heads to send.
            chunks: Into how many parts a rank's heads are split.

        Returns:
            On its way, for each tensor this rank's heads of the group's tokens in ascending order: [T, H / ranks, D];
            views of one tensor, whose last dim is contiguous.
        """
        ranks = self._axis.size
        parts = []
        for x in tensors:
            part = take_apart(x, ranks)
            parts.append(part[:, :, _of(part.shape[2], chunk, chunks)])
        widths = [part.shape[2] for part in parts]
        sent = torch.cat(parts, dim=2).flatten(0, 1)  # [ranks · Tl, all tensors' heads, D]
        mine = self._tokens[self._axis.index]
        received = sent.new_empty((self.num_tokens, *sent.shape[1:]))
        transfer = all_to_all(self._axis, received, sent, self._tokens, [mine] * ranks)
        return Arrival(transfer, lambda: self._order.ascending(received).split(widths, dim=1))

    def to_tokens(self, heads: Tensor, into: Sequence[Tensor], chunk: int = 0, chunks: int = 1) -> Arrival:
        """Sends every rank its tokens of this rank's heads.

        Args:
            heads: Tensors of this rank's heads beside one another, of the group's tokens in ascending order:
                [T, sum of H / ranks, D].
            into: Filled with each tensor's heads of this rank's tokens, when it is waited for: [Tl, H, D].
            chunk: As in `to_heads`.
            chunks: As in `to_heads`.
        """
        ranks = self._axis.size
        sent = self._order.arriving(heads)
        mine = self._tokens[self._axis.index]
        received = sent.new_empty((ranks, mine, *sent.shape[1:]))
        transfer = all_to_all(self._axis, received.flatten(0, 1), sent, [mine] * ranks, self._tokens)
        sizes = [each(x.shape[1], ranks) for x in into]

        def unpack() -> tuple[Tensor, ...]:
            parts = received.split([size // chunks for size in sizes], dim=2)
            for part, x, size in zip(parts, into, sizes, strict=True):
                put_together(part, x, _of(size, chunk, chunks))
            return tuple(into)

        return Arrival(transfer, unpack)


def _of(heads: int, chunk: int, chunks: int) -> slice:
    """The heads of a chunk, of those that one rank has."""
    return slice(heads * chunk // chunks, heads * (chunk + 1) // chunks)


def by_token(lse: Tensor) -> Tensor:
    """A log-sum-exp as a tensor of tokens, as exchanges take them: the view [T, H, 1] of [H, T]."""
    return lse.T[..., None]


def beside(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Buffers for gradients that lie beside one another, to be sent together.

    Returns:
        The whole, [T, Hq + 2 · Hkv, D], and its parts for dq, dk and dv.
    """
    joined = q.new_empty((q.shape[0], q.shape[1] + 2 * k.shape[1], q.shape[2]))
    dq, dk, dv = joined.split([q.shape[1], k.shape[1], v.shape[1]], dim=1)
    return joined, (dq, dk, dv)
