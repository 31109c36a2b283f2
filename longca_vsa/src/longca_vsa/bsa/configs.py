"""Tile shapes, warps and pipeline stages of the three kernels, by head dimension, device and what fills a tile.

A tile has rows of one block, so large tiles are for blocks that fill them: `choose` takes of a kernel's configurations
the one whose tiles, with the rows that they lack, take the least time. In the forward and for dq `block_m`
counts rows, a query under one head each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from longca_triton.config import Config, Configs, by_shared_memory

__all__ = ["candidates", "choose", "tile_count"]


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
#: What a row costs in tiles of so many rows, relative to the largest: smaller ones read more columns for as much work,
#: and below 64 rows Hopper's matrix instructions are out of reach. The mean of the three kernels with 64:8 heads
#: on an H200 (results/h200/sparse/tuning).
_ROW_COST = {128: 1.0, 64: 1.1, 32: 2.1, 16: 3.0}


def candidates(kernel: str, head_dim: int, capability: tuple[int, int]) -> tuple[Config, ...]:
    """The configurations of `forward`, `dkdv` or `dq` on a device, those with the largest tiles first."""
    return by_shared_memory(capability, large=_LARGE, medium=_MEDIUM, small=_SMALL)[kernel][head_dim]


def choose(
    head_dim: int, capability: tuple[int, int], q_bounds: NDArray[np.int64], packed: int, k_bounds: NDArray[np.int64]
) -> Configs:
    """The configurations for a mask's blocks.

    Args:
        head_dim: 64, 128 or 256.
        capability: The device's.
        q_bounds: Bounds of the query blocks.
        packed: Query heads that are rows of one tile.
        k_bounds: Bounds of the key blocks.
    """

    def best(kernel: str) -> Config:
        by_key = kernel == "dkdv"

        def cost(config: Config) -> float:
            if by_key:
                return tile_count(k_bounds, 1, config.block_n) * config.block_n * _ROW_COST[config.block_n]
            return tile_count(q_bounds, packed, config.block_m) * config.block_m * _ROW_COST[config.block_m]

        return min(candidates(kernel, head_dim, capability), key=cost)

    return Configs(best("forward"), best("dkdv"), best("dq"))


def tile_count(bounds: NDArray[np.int64], packed: int, block: int) -> int:
    """How many tiles of `block` rows there are over blocks of tokens under `packed` heads each."""
    return int((-(-np.diff(bounds) * packed // block)).sum())
