"""The number of keys in FlashInfer's lists, and its limits. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from longca import Problem, Reason
from longca.masks import BlockSparseMask

__all__ = ["Listed", "listed", "refusals"]

_MOST = 2**31 - 1


class Listed(NamedTuple):
    """The entries of FlashInfer's lists, over all KV heads and query blocks.

    Attributes:
        blocks: Number of key blocks.
        keys: Number of keys. Each key is one entry.
    """

    blocks: int
    keys: int


def listed(mask: BlockSparseMask, num_heads_kv: int) -> Listed:
    """Counts the entries of FlashInfer's lists. A query block that sees nothing is given the first key block."""
    sizes = np.diff(mask.k_bounds)
    blocks = keys = 0
    for head in range(mask.heads):
        kept = mask.kept(head)
        times = kept.sum(0)
        times[:1] += np.count_nonzero(~kept.any(1))
        blocks, keys = blocks + int(times.sum()), keys + int(times @ sizes)
    copies = num_heads_kv // mask.heads
    return Listed(blocks * copies, keys * copies)


def refusals(kernel: str, problem: Problem) -> Iterator[Reason]:
    """The reasons against a problem that an offer covers.

    Args:
        kernel: The kernel's name.
        problem: The problem. If it has a pattern in place of a mask, it has no size to check.
    """
    mask = problem.mask
    if not isinstance(mask, BlockSparseMask):
        return
    elements = problem.head_dim * max(problem.heads_q * mask.seqlen_q, problem.num_heads_kv * mask.seqlen_k)
    if elements > _MOST:
        offered = f"{kernel} takes at most 2³¹ − 1 elements a tensor"
        yield Reason("lengths", f"{elements} were asked", offered, "Try bsa.")
    # Counting takes time, and few masks are close to the limit.
    most = problem.num_heads_kv * (len(mask.q_bounds) - 1) * mask.seqlen_k
    if most > _MOST and (keys := listed(mask, problem.num_heads_kv).keys) > _MOST:
        offered = f"{kernel} lists at most 2³¹ − 1 keys, over all query blocks and KV heads"
        yield Reason("lengths", f"this mask has {keys}", offered, "Try bsa.")
