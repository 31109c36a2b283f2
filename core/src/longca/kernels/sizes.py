"""Sizes: bytes of a problem's tensors, for kernels and for memory functions of manifests. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from longca.manifests import Problem
from longca.manifests.offers import DTYPE_BYTES
from longca.masks import BlockSparseMask

__all__ = ["DTYPE_BYTES", "Tensors", "block_sparse"]


@dataclass(frozen=True)
class Tensors:
    """Bytes of a problem's tensors, and its numbers of tokens.

    Attributes:
        element: Bytes of an element of q.
        q: Bytes of q, and of out, dout and dq.
        k: Bytes of k, and of v, dk and dv.
        lse: Bytes of the log-sum-exp.
    """

    tokens_q: int
    tokens_k: int
    element: int
    q: int
    k: int
    lse: int

    @classmethod
    def of(cls, problem: Problem) -> Tensors:
        """The tensors of a problem."""
        mask, element = problem.concrete_mask, DTYPE_BYTES[problem.dtype]
        row = problem.head_dim * element
        return cls(
            mask.seqlen_q,
            mask.seqlen_k,
            element,
            mask.seqlen_q * problem.heads_q * row,
            mask.seqlen_k * problem.num_heads_kv * row,
            mask.seqlen_q * problem.heads_q * max(4, element),
        )

    @property
    def wide_q(self) -> int:
        """Bytes of q in float32, or in float64 where q is."""
        return self.q * max(1, 4 // self.element)

    @property
    def wide_k(self) -> int:
        """Bytes of k in float32, or in float64 where k is."""
        return self.k * max(1, 4 // self.element)


def block_sparse(problem: Problem) -> BlockSparseMask:
    """The mask of a problem, if the kernel's offer is for block-sparse masks."""
    mask = problem.concrete_mask
    assert isinstance(mask, BlockSparseMask), "the offer is of block-sparse masks"
    return mask
