"""The properties that distinguish one of cuDNN's attention graphs from another. Does not import cuDNN.

Tensors of a graph are [batch, heads, tokens, head_dim] with any strides. A dense graph has one document. A ragged graph
has packed documents, one for each batch entry. Each document has its own length, and its own offset in every tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from longca.manifests.offers import DType
from longca.manifests.problem import Direction
from longca.masks import Window

__all__ = ["OPERANDS", "GraphSpec", "Strides", "Uid"]

#: Strides of tokens and of heads, in elements.
Strides = tuple[int, int]


class Uid(IntEnum):
    """The tensors of a graph."""

    Q = 1
    K = 2
    V = 3
    OUT = 4
    LSE = 5
    DOUT = 6
    DQ = 7
    DK = 8
    DV = 9
    LENGTH_Q = 20
    LENGTH_K = 21

    @property
    def offsets(self) -> int:
        """The tensor with the offsets of a ragged graph's documents in this tensor, in elements."""
        return self + 100

    @property
    def is_of_values(self) -> bool:
        """Whether the tensor has the head dimension of values instead of that of keys."""
        return self in (Uid.V, Uid.OUT, Uid.DOUT, Uid.DV)

    @property
    def is_of_keys(self) -> bool:
        """Whether the tensor has keys and KV heads instead of queries and query heads."""
        return self in (Uid.K, Uid.V, Uid.DK, Uid.DV)


#: The tensors [tokens, heads, head dimension] of each direction. Outputs come last.
OPERANDS: dict[Direction, tuple[Uid, ...]] = {
    Direction.FORWARD: (Uid.Q, Uid.K, Uid.V, Uid.OUT),
    Direction.BACKWARD: (Uid.Q, Uid.K, Uid.V, Uid.OUT, Uid.DOUT, Uid.DQ, Uid.DK, Uid.DV),
}


@dataclass(frozen=True, kw_only=True)
class GraphSpec:
    """The properties that distinguish one graph from another.

    Attributes:
        direction: `forward`, or `backward` for the gradients alone.
        dtype: Data type of all tensors except the log-sum-exp, which is float32.
        batch: Number of documents. 1 for a dense graph.
        seqlen_q: Queries of a document. In a ragged graph, those of the longest document.
        seqlen_k: Keys of a document. In a ragged graph, those of the longest document.
        heads_q: Query heads.
        heads_kv: KV heads.
        head_dims: Head dimensions of q and k, and of v.
        window: The band, the same in every document.
        bottom_right: True if the band's diagonal ends at a document's last query and key. False if it begins at its
            first query and key.
        scale: Factor on the scores.
        deterministic: Whether the backward must give equal bits.
        ragged: Upper bound of the tokens of all documents together, as (queries, keys). None for a dense graph.
        strides: The strides of each of `OPERANDS`.
    """

    direction: Direction
    dtype: DType
    batch: int
    seqlen_q: int
    seqlen_k: int
    heads_q: int
    heads_kv: int
    head_dims: tuple[int, int]
    window: Window
    bottom_right: bool
    scale: float
    deterministic: bool
    ragged: tuple[int, int] | None
    strides: tuple[Strides, ...]

    @property
    def label(self) -> str:
        """The name of the graph in a message."""
        kind = "dense" if self.ragged is None else f"ragged ({self.batch} documents at most)"
        heads = f"{self.heads_q}:{self.heads_kv} heads of {self.head_dims}"
        flags = "".join(f", {word}" for word in ("bottom_right", "deterministic") if getattr(self, word))
        return (
            f"{kind} {self.direction} of {self.seqlen_q} × {self.seqlen_k} tokens, {heads}, {self.dtype}, "
            f"window {tuple(self.window)}{flags}"
        )

    def layout(self, uid: Uid) -> tuple[list[int], list[int]]:
        """The dimensions and strides of one of `OPERANDS`."""
        heads, tokens = (self.heads_kv, self.seqlen_k) if uid.is_of_keys else (self.heads_q, self.seqlen_q)
        by_token, by_head = self.strides[OPERANDS[self.direction].index(uid)]
        dim = self.head_dims[uid.is_of_values]
        return [self.batch, heads, tokens, dim], [tokens * by_token, by_head, by_token, 1]

    @property
    def lse_layout(self) -> tuple[list[int], list[int]]:
        """The dimensions and strides of the log-sum-exp: [Hq, Tq] in memory if dense, [Tq, Hq] if ragged."""
        heads, tokens = self.heads_q, self.seqlen_q
        inner = [tokens, 1, 1] if self.ragged is None else [1, heads, 1]
        return [self.batch, heads, tokens, 1], [heads * tokens, *inner]
