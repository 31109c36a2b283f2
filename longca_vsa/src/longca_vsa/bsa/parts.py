"""The parts of a backward that stores gradients of scores: some KV heads and some blocks of queries at a time.

The gradients of a part fit into a store of a limited size. The queries of a group of heads fit into the L2 cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from longca import Problem
from longca.kernels.sizes import Tensors, block_sparse
from longca.masks.bitmaps import seen_tokens
from longca_triton.config import Config, Configs
from longca_vsa.bsa.configs import FromScores

__all__ = ["cut_into_parts", "stored_bytes"]

_ELEMENT = 2  # bytes


def cut_into_parts(problem: Problem, configs: Configs) -> Iterator[tuple[slice, slice]]:
    """The KV heads and the blocks of queries of each part. The parts of some heads follow each other.

    Args:
        problem: The problem. Its mask is a block-sparse one.
        configs: The configurations. That of dq is a `FromScores`.
    """
    stored, config = stored_bytes(problem, configs.dkdv), configs.dq
    assert isinstance(config, FromScores)
    heads, blocks = stored.shape
    fullest, group = int(stored.sum(1).max(initial=0)), Tensors.of(problem).q // heads
    ranges = min(max(-(-fullest // config.store), -(-2 * group // config.cache), 1), max(1, blocks))
    many = -(-heads // min(heads, max(1, config.store * ranges // max(1, fullest))))  # slices of heads
    last = np.searchsorted(stored.sum(0).cumsum(), stored.sum() * np.arange(1, ranges) / ranges, side="right")
    ends = [0, *np.unique(last[(last > 0) & (last < blocks)]).tolist(), blocks]
    for n in range(many):
        some = slice(n * heads // many, (n + 1) * heads // many)
        yield from ((some, slice(first, stop)) for first, stop in pairwise(ends))


def stored_bytes(problem: Problem, config: Config) -> NDArray[np.int64]:
    """Bytes that the queries of each block store under the heads of each KV head, at most: [KV heads, query blocks].

    A step that takes queries of several blocks is counted as a step for each block.

    Args:
        problem: The problem.
        config: The configuration of dk and dv.
    """
    mask, heads = block_sparse(problem), problem.num_heads_kv
    rows, columns = (
        -(-np.diff(bounds) // block) * block
        for bounds, block in zip((mask.q_bounds, mask.k_bounds), config.shape, strict=True)
    )
    found = seen_tokens(mask.bits, columns) * rows * (problem.heads_q // mask.heads) * _ELEMENT
    if mask.heads < heads:
        return found.repeat(heads // mask.heads, axis=0) // (heads // mask.heads)
    return found.reshape(heads, mask.heads // heads, -1).sum(1)
