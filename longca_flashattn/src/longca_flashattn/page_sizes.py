"""Sizes of pages and units of block-sparse masks, for plans and for memory functions. Torch-free."""

from __future__ import annotations

from math import gcd

import numpy as np

from longca.kernels.sizes import block_sparse
from longca.manifests import Problem
from longca.masks import BlockSparseMask

__all__ = ["joint_lse_bytes", "page_size", "pages_a_row", "runs_jointly", "unit_size"]

#: FlashAttention-3 loads pages of other sizes by another path, which reads whole pages even past the end of the keys.
_LARGEST_PAGE = 128
#: Queries and heads of a tile of FlashAttention-3.
_TILE = 128
_UNIT = 64
#: The most bytes of the log-sum-exp of a joint call, which is as wide as its units.
_MOST_LSE = 2**28


def page_size(mask: BlockSparseMask) -> int:
    """Keys of a page: the largest divisor of 128 and of all bounds of key blocks but the last, at most all keys."""
    size = gcd(_LARGEST_PAGE, *map(int, mask.k_bounds[:-1]))
    while size > max(1, mask.seqlen_k):
        size //= 2
    return size


def pages_a_row(mask: BlockSparseMask) -> int:
    """The most pages that a block of queries reads, and at least 1."""
    return max(1, -(-int(mask.keys_by_block.max(initial=0)) // page_size(mask)))


def unit_size(mask: BlockSparseMask, group: int) -> int:
    """Queries of a unit of a joint call: a divisor of all query blocks.

    Args:
        mask: The mask.
        group: Query heads of a KV head.
    """
    return gcd(max(_UNIT, _TILE // group), *map(int, mask.q_bounds))


def runs_jointly(problem: Problem) -> bool:
    """Whether one call computes all KV heads.

    Units must fill tiles, or be whole blocks. Long sequences have a call for each KV head, because the log-sum-exp of a
    joint call would be large.
    """
    mask, heads_kv = block_sparse(problem), problem.num_heads_kv
    if mask.heads != heads_kv or heads_kv == 1 or not mask.seqlen_q:
        return False
    group = problem.heads_q // heads_kv
    unit = unit_size(mask, group)
    fills = unit * group % _TILE == 0 or bool((np.diff(mask.q_bounds) == unit).all())
    return fills and joint_lse_bytes(problem) <= _MOST_LSE


def joint_lse_bytes(problem: Problem) -> int:
    """Bytes of the log-sum-exp that a joint call returns: float32 [unit, flattened queries up to the last unit]."""
    mask = block_sparse(problem)
    unit = unit_size(mask, problem.heads_q // problem.num_heads_kv)
    return 4 * unit * (mask.seqlen_q - unit + 1) * problem.heads_q
