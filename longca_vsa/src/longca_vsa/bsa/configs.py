"""Tile shapes, warps and pipeline stages of the three kernels, by head dimension, device and what fills a tile.

A tile has rows of one block, so large tiles are for blocks that fill them: `choose` takes of a kernel's configurations
the one whose tiles, with the rows that they lack, take the least time. Shared memory is what limits them: 227 KiB a
multiprocessor on 9.0 and 10.0, 163 KiB on 8.0 and 8.7, 99 KiB elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from longca_vsa.bsa.tables import tile_count

__all__ = ["Config", "Configs", "candidates", "choose"]


@dataclass(frozen=True)
class Config:
    """How one kernel is compiled.

    Attributes:
        block_m: Queries a tile; for the forward and dq these are rows, a query under one head each.
        block_n: Keys a tile.
        num_warps: Warps a program.
        num_stages: Tiles that are loaded ahead.
        tma: Whether tiles are loaded by the tensor memory accelerator, where strides and addresses allow it.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    tma: bool = False

    @property
    def options(self) -> dict[str, int | bool]:
        """What a launch passes on to the compiler."""
        # A score is scaled and loses its row's maximum in one instruction; newer versions of Triton want to be asked.
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": True}


@dataclass(frozen=True)
class Configs:
    """The three kernels' configurations.

    Attributes:
        forward: Of the forward kernel.
        dkdv: Of the backward's kernel by key blocks.
        dq: Of the backward's kernel by query blocks.
    """

    forward: Config
    dkdv: Config
    dq: Config


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
#: and below 64 rows Hopper's matrix instructions are out of reach.
_ROW_COST = {128: 1.0, 64: 1.2, 32: 2.0, 16: 3.0}


def candidates(kernel: str, head_dim: int, capability: tuple[int, int]) -> tuple[Config, ...]:
    """The configurations of `forward`, `dkdv` or `dq` on a device, those with the largest tiles first."""
    if capability[0] in (9, 10):
        return _LARGE[kernel][head_dim]
    return (_MEDIUM if capability in ((8, 0), (8, 7)) else _SMALL)[kernel][head_dim]


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
