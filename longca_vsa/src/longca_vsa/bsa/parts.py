"""The parts of a backward that stores gradients of scores: some KV heads, and some query heads of each of their groups.

All parts walk the same lists. The gradients of a part fit into a store of a limited size, and the queries of a KV head
into the L2 cache. A part has tiles of keys for all multiprocessors, and fills tiles of queries. Where even such a part
has too many gradients or queries, its queries are cut into ranges, each with lists of its own.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longca import Problem
from longca.kernels.sizes import Tensors, block_sparse
from longca.masks.bitmaps import seen_tokens
from longca_triton.config import Config, Configs
from longca_vsa.bsa.configs import FromScores, tile_count

__all__ = ["Cut", "cut_into_parts", "stored_bytes"]

_ELEMENT = 2  # bytes
#: Tiles of keys that keep a device busy: two on each of the 132 multiprocessors of an H200, almost twice.
_PROGRAMS = 512


class Cut(NamedTuple):
    """The sizes of the parts.

    Attributes:
        heads_kv: KV heads of a part, a divisor of all.
        heads: Query heads of each KV head of a part, a divisor of the group.
        ranges: The blocks of queries of each range.
    """

    heads_kv: int
    heads: int
    ranges: tuple[slice, ...]

    def has_sums(self, group: int) -> bool:
        """Whether several parts add to dk and dv of a KV head, which has a group of so many query heads."""
        return len(self.ranges) > 1 or self.heads < group


def cut_into_parts(problem: Problem, configs: Configs) -> Cut:
    """The parts of a backward.

    Args:
        problem: The problem. Its mask is a block-sparse one that the heads of each group share.
        configs: The configurations. That of dq is a `FromScores`.
    """
    mask, config = block_sparse(problem), configs.dq
    assert isinstance(config, FromScores)
    stored = stored_bytes(problem, configs.dkdv)
    group, blocks = problem.heads_q // problem.num_heads_kv, stored.shape[1]
    a_head = int(stored.sum(1).max(initial=0)) // group
    cached = 2 * Tensors.of(problem).q // problem.heads_q
    widths = [n for n in _divisors(problem.num_heads_kv) if n == 1 or n * config.streams <= problem.num_heads_kv]
    tiles = max(1, tile_count(mask.k_bounds, 1, config.block_n))
    heads_kv = next((n for n in widths if n * tiles >= _PROGRAMS), widths[-1])
    filling = -(-config.block_m * blocks // max(1, mask.seqlen_q))  # heads under which a block fills a tile
    least = next((n for n in _divisors(group) if n >= filling), group)
    pieces, most = max(1, -(-heads_kv * least * a_head // config.store)), max(1, blocks)

    def fits(kv: int, heads: int) -> bool:
        number = kv * heads / pieces  # of query heads
        is_read_once = (
            number * cached <= config.cache * heads_kv or number * problem.area <= config.pairs * problem.heads_q
        )
        return number * a_head <= config.store and is_read_once

    while pieces < most and not fits(heads_kv, least):
        pieces *= 2
    pieces = min(pieces, most)
    heads = max((n for n in _divisors(group) if n >= least and fits(heads_kv, n)), default=least)
    widest = max((n for n in widths if n >= heads_kv and fits(n, heads)), default=heads_kv)
    last = np.searchsorted(stored.sum(0).cumsum(), stored.sum() * np.arange(1, pieces) / pieces, side="right")
    ends = [0, *np.unique(last[(last > 0) & (last < blocks)]).tolist(), blocks]
    return Cut(widest, heads, tuple(slice(first, stop) for first, stop in pairwise(ends)))


def stored_bytes(problem: Problem, config: Config) -> NDArray[np.int64]:
    """Bytes that the queries of each block store under all heads of a group, at most: [mask heads, query blocks].

    A step that takes queries of several blocks is counted as a step for each block.
    """
    mask = block_sparse(problem)
    rows, columns = (
        -(-np.diff(bounds) // block) * block
        for bounds, block in zip((mask.q_bounds, mask.k_bounds), config.shape, strict=True)
    )
    return seen_tokens(mask.bits, columns) * rows * (problem.heads_q // problem.num_heads_kv) * _ELEMENT


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
