"""Tile shapes, warps and pipeline stages of the three kernels, by head dimension and compute capability.

Shared memory is what limits them: 227 KiB a multiprocessor on 9.0 and 10.0, 163 KiB on 8.0 and 8.7, 99 KiB elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Config", "Configs", "choose"]


@dataclass(frozen=True)
class Config:
    """How one kernel is compiled.

    Attributes:
        block_m: Queries a tile.
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
    def shape(self) -> tuple[int, int]:
        """Queries and keys a tile."""
        return self.block_m, self.block_n

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


_LARGE = {
    64: Configs(Config(64, 128, 4, 2, True), Config(64, 64, 4, 3, True), Config(64, 64, 4, 2, True)),
    128: Configs(Config(128, 64, 4, 2, True), Config(64, 64, 4, 2, True), Config(128, 64, 8, 3, True)),
    256: Configs(Config(128, 64, 8, 2, True), Config(64, 64, 8, 1, True), Config(64, 64, 4, 2, True)),
}
_MEDIUM = {
    64: Configs(Config(128, 64, 4, 3), Config(32, 64, 4, 2), Config(64, 64, 4, 2)),
    128: Configs(Config(128, 64, 8, 3), Config(64, 64, 8, 2), Config(64, 64, 8, 2)),
    256: Configs(Config(64, 64, 8, 2), Config(32, 64, 8, 1), Config(64, 32, 8, 2)),
}
_SMALL = {
    64: Configs(Config(128, 64, 4, 2), Config(32, 64, 4, 2), Config(64, 64, 4, 2)),
    128: Configs(Config(128, 32, 8, 2), Config(32, 64, 8, 2), Config(64, 32, 4, 2)),
    256: Configs(Config(64, 32, 8, 1), Config(32, 32, 8, 1), Config(32, 32, 8, 1)),
}


def choose(head_dim: int, capability: tuple[int, int]) -> Configs:
    """The configurations for a head dimension of 64, 128 or 256 on a device."""
    if capability[0] in (9, 10):
        return _LARGE[head_dim]
    return (_MEDIUM if capability in ((8, 0), (8, 7)) else _SMALL)[head_dim]
