"""Tile shapes, warps and pipeline stages of the three kernels, by head dimension, device and blocks.

A tile has rows of one block, so large tiles suit blocks that fill them. `choose` takes the configuration whose tiles
take the least time, unfilled rows included. In the forward and for dq, `block_m` counts rows: a query under one head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from longca import Problem
from longca.kernels.sizes import Tensors, block_sparse
from longca_triton.config import Config, Configs, by_shared_memory

__all__ = [
    "FromScores",
    "are_whole",
    "candidates",
    "choose",
    "from_scores",
    "heads_in_cache",
    "packed_heads",
    "piece_of",
    "recomputing",
    "tile_count",
    "unit_of",
]


@dataclass(frozen=True)
class FromScores(Config):
    """A configuration of dq as the product of keys and of gradients of scores, which the launch of dk and dv stores.

    The backward goes part by part: some query heads of some KV heads at a time. `block_n` is that of dk and dv. Blocks
    are walked as runs, not gathered. If the heads of a group do not share their mask, nothing is stored.

    Attributes:
        store: Bytes of gradients that a part stores, about.
        cache: Bytes of q and dout that a part reads for a KV head, about.
        streams: Parts that may run at the same time, each with a store of its own.
        pairs: Visible pairs that a part may have, whatever it reads.
        hopper: Whether dk and dv come from the kernel in `hopper`, if Triton and the tensors allow it. It has whole
            tiles of 64 keys.
    """

    store: int = 2**31
    cache: int = 2**24
    streams: int = 1
    pairs: int = 0
    hopper: bool = False


_Table = dict[int, tuple[Config, ...]]

_LARGE: dict[str, _Table] = {
    "forward": {
        64: (Config(128, 64, 4, 3, True), Config(64, 64, 4, 3, True), Config(32, 64, 4, 3, True), Config(16, 64, 2, 3)),
        128: (
            Config(128, 64, 4, 2, True),
            Config(64, 64, 4, 3, True),
            Config(32, 64, 4, 2, True),
            Config(16, 64, 2, 2),
        ),
        256: (Config(128, 64, 8, 2, True), Config(64, 64, 4, 2, True), Config(16, 32, 4, 2)),
    },
    "dkdv": {
        64: (Config(64, 64, 4, 3, True), Config(64, 32, 4, 3, True), Config(64, 16, 4, 2)),
        128: (Config(64, 64, 4, 2, True), Config(64, 32, 4, 2, True), Config(64, 16, 4, 2)),
        256: (Config(64, 64, 8, 1, True), Config(32, 16, 4, 1)),
    },
    "dq": {
        64: (Config(128, 64, 8, 3, True), Config(64, 64, 4, 2, True), Config(32, 64, 4, 2, True), Config(16, 64, 2, 2)),
        128: (
            Config(128, 64, 8, 3, True),
            Config(64, 64, 4, 2, True),
            Config(32, 64, 4, 2, True),
            Config(16, 64, 2, 2),
        ),
        256: (Config(64, 64, 4, 2, True), Config(16, 32, 4, 2)),
    },
}
_MEDIUM: dict[str, _Table] = {
    "forward": {
        64: (Config(128, 64, 4, 3), Config(64, 64, 4, 3), Config(16, 64, 2, 3)),
        128: (Config(128, 64, 8, 3), Config(64, 64, 4, 2), Config(16, 64, 2, 2)),
        256: (Config(64, 64, 8, 2), Config(16, 32, 4, 2)),
    },
    "dkdv": {
        64: (Config(32, 64, 4, 2), Config(64, 16, 4, 2)),
        128: (Config(64, 64, 8, 2), Config(32, 16, 4, 2)),
        256: (Config(32, 64, 8, 1), Config(32, 16, 4, 1)),
    },
    "dq": {
        64: (Config(64, 64, 4, 2), Config(16, 64, 2, 2)),
        128: (Config(64, 64, 8, 2), Config(16, 64, 2, 2)),
        256: (Config(64, 32, 8, 2), Config(16, 32, 4, 2)),
    },
}
_SMALL: dict[str, _Table] = {
    "forward": {
        64: (Config(128, 64, 4, 2), Config(64, 64, 4, 2), Config(16, 64, 2, 2)),
        128: (Config(128, 32, 8, 2), Config(64, 32, 4, 2), Config(16, 32, 2, 2)),
        256: (Config(64, 32, 8, 1), Config(16, 32, 4, 1)),
    },
    "dkdv": {
        64: (Config(32, 64, 4, 2), Config(64, 16, 4, 2)),
        128: (Config(32, 64, 8, 2), Config(32, 16, 4, 2)),
        256: (Config(32, 32, 8, 1), Config(32, 16, 4, 1)),
    },
    "dq": {
        64: (Config(64, 64, 4, 2), Config(16, 64, 2, 2)),
        128: (Config(64, 32, 4, 2), Config(16, 32, 2, 2)),
        256: (Config(32, 32, 8, 1), Config(16, 32, 4, 1)),
    },
}
#: Cost of a row in tiles of so many rows, relative to the largest tiles. Smaller tiles read more columns for as much
#: work, and Hopper's matrix instructions need 64 rows. The mean of the three kernels with 64:8 heads on an H200
#: (results/h200/sparse/tuning).
_ROW_COST = {128: 1.0, 64: 1.1, 32: 2.1, 16: 3.0}

#: Visible pairs from which a backward stores gradients of scores, some fewer than were measured. Launching the parts of
#: a short backward takes longer than storing saves.
_STORES_FROM = 3 * 10**8
#: Visible pairs of a part that keep an H100 busy for about half a millisecond, so that launching hardly counts.
_PAIRS = 22 * 10**7
#: Bytes of a store at most, over those of q.
_STORED = 8

#: Blocks of fewer tokens are not gathered: finding them takes more time than loading them.
_SMALLEST_PIECE = 16


def candidates(kernel: str, head_dim: int, capability: tuple[int, int] | None) -> tuple[Config, ...]:
    """The configurations of `forward`, `dkdv` or `dq` on a device, the largest tiles first."""
    return by_shared_memory(capability, large=_LARGE, medium=_MEDIUM, small=_SMALL)[kernel][head_dim]


def choose(problem: Problem, capability: tuple[int, int] | None = None) -> Configs:
    """The configurations for the blocks of a problem's mask.

    Args:
        problem: The problem. Its mask is a block-sparse one.
        capability: A compute capability. None stands for the capability of the problem's device.
    """
    capability = capability or problem.device.capability
    configs = recomputing(problem, capability)
    if capability != (9, 0) or not _gains_by_storing(problem):
        return configs
    store = min(FromScores.store, _STORED * Tensors.of(problem).q)
    whole = are_whole(block_sparse(problem).k_bounds, 64)
    dq = FromScores(128, configs.dkdv.block_n, 8, 3, True, store=store, streams=2, pairs=_PAIRS, hopper=whole)
    return replace(configs, dq=dq)


def _gains_by_storing(problem: Problem) -> bool:
    """Whether stored gradients of scores make the backward faster, as measured on an H200.

    Measured were blocks of 64 and 128 and a head dimension of 128, with two to eight query heads a group that share
    their mask. With one query head a group, half kept is slower so (results/h200/sparse/tuning).
    """
    has_whole_tiles = (block_sparse(problem).block_size or 1) % 64 == 0
    return has_whole_tiles and problem.head_dim == 128 and packed_heads(problem) > 1 and problem.area >= _STORES_FROM


def recomputing(problem: Problem, capability: tuple[int, int] | None) -> Configs:
    """The same, with a kernel of dq that computes the scores again."""
    mask, packed = block_sparse(problem), packed_heads(problem)

    def best(kernel: str) -> Config:
        def cost(config: Config) -> float:
            if kernel == "dkdv":
                return tile_count(mask.k_bounds, 1, config.block_n) * config.block_n * _ROW_COST[config.block_n]
            return tile_count(mask.q_bounds, packed, config.block_m) * config.block_m * _ROW_COST[config.block_m]

        return min(candidates(kernel, problem.head_dim, capability), key=cost)

    return Configs(best("forward"), best("dkdv"), best("dq"))


def from_scores(problem: Problem, configs: Configs) -> FromScores | None:
    """The configuration of dq, if a backward stores gradients of scores. The heads of a group then walk one list."""
    shared = problem.concrete_mask.heads in (1, problem.num_heads_kv)
    return configs.dq if shared and isinstance(configs.dq, FromScores) else None


def packed_heads(problem: Problem) -> int:
    """Query heads that are rows of one tile: the heads of a group if they share their mask, else 1."""
    return problem.heads_per_mask


def tile_count(bounds: NDArray[np.int64], packed: int, block: int) -> int:
    """The number of tiles of `block` rows over blocks of tokens under `packed` heads each."""
    return int((-(-np.diff(bounds) * packed // block)).sum())


def are_whole(bounds: NDArray[np.int64], block: int) -> bool:
    """Whether blocks of tokens are of whole tiles of `block` rows."""
    return not (np.diff(bounds) % block).any()


def unit_of(bounds: NDArray[np.int64]) -> int | None:
    """Tokens a block if all blocks are of one size (the last may be cut short), else None."""
    sizes = np.diff(bounds)
    if not len(sizes) or (sizes[:-1] != sizes[0]).any() or sizes[-1] > sizes[0]:
        return None
    return int(sizes[0])


def piece_of(bounds: NDArray[np.int64], step: int) -> int:
    """Tokens a block if a step of so many columns gathers several blocks, else 0."""
    unit = unit_of(bounds) or 0
    return unit if _SMALLEST_PIECE <= unit < step and step % unit == 0 else 0


def heads_in_cache(cache: int, group: int, head: int) -> int:
    """Query heads of a group whose q and dout take at most half the L2 cache, at least one. They divide the group.

    Args:
        cache: Bytes of the L2 cache.
        group: Query heads a KV head.
        head: Bytes of q under one head.
    """
    fits = max(1, cache // (4 * max(1, head)))
    return max(heads for heads in range(1, group + 1) if group % heads == 0 and heads <= fits)
