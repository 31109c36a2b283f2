"""How the three kernels of FlashAttention's kind are compiled: tile shapes, warps and pipeline stages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

__all__ = ["Config", "Configs", "by_shared_memory"]

T = TypeVar("T")


@dataclass(frozen=True)
class Config:
    """How one kernel is compiled.

    Attributes:
        block_m: Queries a tile. A query that a tile takes under several heads counts once for each head.
        block_n: Keys a tile.
        num_warps: Warps a program.
        num_stages: Tiles that are loaded ahead.
        tma: Whether the tensor memory accelerator loads tiles, if strides and addresses allow it.
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
        """The compiler's options for a launch."""
        # One instruction scales a score and subtracts its row's maximum. Newer versions of Triton need this option.
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": True}

    def constants(self, head_dim: int, tma: bool) -> dict[str, int | bool]:
        """The constants that every kernel is compiled for, and the options.

        Args:
            head_dim: The head dimension.
            tma: Whether the launch has descriptors.
        """
        return {"HEAD_DIM": head_dim, "BLOCK_M": self.block_m, "BLOCK_N": self.block_n, "TMA": tma, **self.options}


@dataclass(frozen=True)
class Configs:
    """The three kernels' configurations.

    Attributes:
        forward: The configuration of the forward kernel.
        dkdv: The configuration of the backward's kernel by key blocks.
        dq: The configuration of the backward's kernel by query blocks.
    """

    forward: Config
    dkdv: Config
    dq: Config

    @property
    def by_pointers(self) -> Configs:
        """The same configurations without the tensor memory accelerator."""
        return Configs(*(replace(config, tma=False) for config in (self.forward, self.dkdv, self.dq)))


def by_shared_memory(capability: tuple[int, int] | None, *, large: T, medium: T, small: T) -> T:
    """Chooses by the shared memory of a device's multiprocessors, which limits configurations.

    Args:
        capability: The device's compute capability, major and minor. A CPU has none.
        large: The choice for 227 KiB: capabilities 9.0 and 10.x.
        medium: The choice for 163 KiB: capabilities 8.0 and 8.7.
        small: The choice for 99 KiB: all other devices.
    """
    if capability and capability[0] in (9, 10):
        return large
    return medium if capability in ((8, 0), (8, 7)) else small
