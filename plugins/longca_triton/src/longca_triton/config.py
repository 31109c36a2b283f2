"""How the three kernels of FlashAttention's kind are compiled: tile shapes, warps and pipeline stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

__all__ = ["Config", "Configs", "by_shared_memory"]

T = TypeVar("T")


@dataclass(frozen=True)
class Config:
    """How one kernel is compiled.

    Attributes:
        block_m: Queries a tile; where a tile takes queries under several heads, each under each head counts.
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


def by_shared_memory(capability: tuple[int, int], *, large: T, medium: T, small: T) -> T:
    """What is for a device of some compute capability, by its shared memory, which is what limits configurations.

    Args:
        capability: Major and minor.
        large: For 227 KiB a multiprocessor: 9.0 and 10.x.
        medium: For 163 KiB: 8.0 and 8.7.
        small: For 99 KiB, as elsewhere.
    """
    if capability[0] in (9, 10):
        return large
    return medium if capability in ((8, 0), (8, 7)) else small
