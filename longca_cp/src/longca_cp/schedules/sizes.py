"""Sizes: bytes of a rank's tensors, and of the tensors that an exchange of heads moves. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from longca.manifests import Layout, Problem
from longca.manifests.offers import DTYPE_BYTES
from longca.manifests.schedule import Move
from longca_cp.memory import SUMMED

__all__ = ["ExchangeSizes", "Sizes", "group_tokens"]


@dataclass(frozen=True)
class Sizes:
    """The dimensions of a rank's tensors."""

    item: int  # bytes of an element
    dims: tuple[int, int]  # of q and k, and of v and out
    heads_q: int
    heads_kv: int
    copies: bool = False  # whether KV heads are copied for several ranks

    @classmethod
    def of(cls, problem: Problem) -> Sizes:
        """Those of all heads."""
        return cls(DTYPE_BYTES[problem.dtype], problem.dims, problem.heads_q, problem.num_heads_kv)

    @property
    def q(self) -> int:
        """Bytes of a token's queries."""
        return self.item * self.heads_q * self.dims[0]

    @property
    def out(self) -> int:
        """Bytes of a token's output."""
        return self.item * self.heads_q * self.dims[1]

    @property
    def kv(self) -> int:
        """Bytes of a token's keys and values."""
        return self.item * self.heads_kv * sum(self.dims)

    @property
    def wide(self) -> int:
        """Bytes of a sum's element over those of an element."""
        return max(1, 4 // self.item)

    def by_heads(self, ranks: int) -> Sizes:
        """Those of the heads that one of so many ranks has."""
        heads_kv = max(1, self.heads_kv // ranks)
        return replace(self, heads_q=self.heads_q // ranks, heads_kv=heads_kv, copies=self.heads_kv < ranks)

    def in_chunks(self, chunks: int) -> Sizes:
        """Those of one of so many equal chunks of heads."""
        return replace(self, heads_q=self.heads_q // chunks, heads_kv=self.heads_kv // chunks)

    def merging(self, parts: int, size: int) -> int:
        """Bytes read and written to merge or add up so many results of a size, as `longca.parallel.merge` does."""
        if parts < SUMMED:
            return 3 * size if parts == 2 else 0
        passes = (parts - 1) // 2
        totals = 2 * passes * self.wide  # written once and read once each
        return (totals + parts + 1) * size


@dataclass(frozen=True, eq=False)
class ExchangeSizes:
    """The bytes that an exchange of heads along an axis moves and touches."""

    axis: str
    mine: Sizes  # of a rank's heads
    tokens: NDArray[np.int64]  # of each rank: [groups, ranks of a group]

    @classmethod
    def of(cls, axis: str, sizes: Sizes, layout: Layout) -> ExchangeSizes:
        """The exchange along a layout's last axis."""
        ranks = dict(layout.axis_sizes)[axis]
        held = np.array([layout.shard_size(rank) for rank in range(layout.world_size)], np.int64)
        return cls(axis, sizes.by_heads(ranks), held.reshape(-1, ranks))

    @property
    def ranks(self) -> int:
        """Ranks of a group."""
        return self.tokens.shape[1]

    def to_heads(self, row: int, carries: str) -> Move:
        """The all-to-all that brings each rank so many bytes of heads of each of the group's tokens."""
        return self._move(self.ranks * int(self.tokens.max()), row, carries)

    def to_tokens(self, row: int, carries: str) -> Move:
        """The all-to-all that brings each rank so many bytes of every rank's heads of each of its tokens."""
        return self._move(self._whole, row, carries)

    def lse(self, heads: int) -> Move:
        """The same of the log-sum-exps."""
        return self._move(self._whole, heads * max(4, self.mine.item), "lse")

    def packed(self, row: int, copies: bool) -> int:
        """Bytes touched for packing the tensors that `to_heads` sends."""
        return 2 * self.ranks * int(self.tokens.max()) * (row + (self.mine.kv if copies else 0))

    def unpacked(self, row: int) -> int:
        """Bytes touched to put every rank's heads into their place, or those of the group's tokens side by side."""
        return 2 * self._whole * row

    @property
    def _whole(self) -> int:
        return int(self.tokens.sum(1).max())

    def _move(self, rows: int, row: int, carries: str) -> Move:
        away, there = self.tokens.sum(1, keepdims=True) - self.tokens, (self.ranks - 1) * self.tokens
        return Move("all_to_all", self.axis, rows * row, int(max(away.max(), there.max())) * row, carries=carries)


def group_tokens(layout: Layout, size: int) -> NDArray[np.int64]:
    """Tokens of each group of so many ranks that are next to one another: [groups]."""
    held = np.array([layout.shard_size(rank) for rank in range(layout.world_size)], np.int64)
    return held.reshape(-1, size).sum(1)
