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
        q: Bytes of q and dq.
        k: Bytes of k and dk.
        v: Bytes of v and dv.
        out: Bytes of out and dout.
        lse: Bytes of the log-sum-exp.
    """

    tokens_q: int
    tokens_k: int
    element: int
    q: int
    k: int
    v: int
    out: int
    lse: int

    @classmethod
    def of(cls, problem: Problem) -> Tensors:
        """The tensors of a problem."""
        mask, element = problem.concrete_mask, DTYPE_BYTES[problem.dtype]
        row, row_v = (dim * element for dim in problem.dims)
        return cls(
            mask.seqlen_q,
            mask.seqlen_k,
            element,
            mask.seqlen_q * problem.heads_q * row,
            mask.seqlen_k * problem.num_heads_kv * row,
            mask.seqlen_k * problem.num_heads_kv * row_v,
            mask.seqlen_q * problem.heads_q * row_v,
            mask.seqlen_q * problem.heads_q * max(4, element),
        )

    def wide(self, nbytes: int) -> int:
        """Bytes of tensors of so many bytes in float32, or in float64 where q is."""
        return nbytes * max(1, 4 // self.element)


def block_sparse(problem: Problem) -> BlockSparseMask:
    """The mask of a problem, if the kernel's offer is for block-sparse masks."""
    mask = problem.concrete_mask
    assert isinstance(mask, BlockSparseMask), "the offer is of block-sparse masks"
    return mask
