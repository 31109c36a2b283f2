"""The tiles of rows of the programs, and the order in which programs begin.

No tile has rows of two blocks, so a program walks one list. The rows of a block are its tokens, each under `packed`
heads: 64 queries under the 8 heads of a group are 512 rows, four tiles of 128.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Tiles", "make_tiles", "tile_array"]


@dataclass(frozen=True, eq=False)
class Tiles:
    """The tiles and programs of one kernel.

    Attributes:
        table: First token and one past the last token of the tile's block, first row of the tile within the block, and
            the block: int32 [tiles, 4].
        order: The programs, as head · tiles + tile, in the order in which they begin: int32 [heads · tiles]. A
            program's head is a KV head, a query head, or a group of packed heads. Those of heads that are launched
            together follow each other.
    """

    table: Tensor
    order: Tensor

    def of_heads(self, heads: slice) -> Tiles:
        """The programs of some heads that are launched together."""
        tiles = len(self.table)
        return Tiles(self.table, self.order[heads.start * tiles : heads.stop * tiles])

    @property
    def programs(self) -> int:
        """The number of programs."""
        return len(self.order)


def tile_array(bounds: NDArray[np.int64], packed: int, block: int) -> NDArray[np.int32]:
    """The `table` of `Tiles`.

    Args:
        bounds: Bounds of the rows' blocks: [blocks + 1].
        packed: Heads a token.
        block: Rows a tile.
    """
    counts = -(-np.diff(bounds) * packed // block)
    owner = np.arange(len(counts)).repeat(counts)
    before = np.r_[0, np.cumsum(counts)][:-1]
    first_row = (np.arange(len(owner)) - before[owner]) * block
    return np.stack([bounds[owner], bounds[owner + 1], first_row, owner], axis=1).astype(np.int32)


def make_tiles(
    bounds: NDArray[np.int64], packed: int, block: int, steps: Tensor, heads: int, together: int | None = None
) -> Tiles:
    """The tiles of one kernel, and the order of its programs.

    Args:
        bounds: Bounds of the rows' blocks: [blocks + 1].
        packed: Heads a token.
        block: Rows a tile.
        steps: The steps of each block's programs, by mask head: int32 [mask heads, blocks].
        heads: The heads of the programs of one tile. A multiple of the mask heads.
        together: Heads that are launched together, a divisor of all. None stands for all.
    """
    table = torch.from_numpy(tile_array(bounds, packed, block)).to(steps.device)
    work = steps[:, table[:, 3].long()].repeat_interleave(heads // len(steps), dim=0)
    launches = heads // (together or heads)
    return Tiles(table, _longest_first(work.view(launches, work.numel() // launches)))


def _longest_first(work: Tensor) -> Tensor:
    """The programs of each launch [launches, programs] in the order of their work, launch after launch.

    The order has classes of work half the mean apart. A class keeps the present order.

    Programs of one head that run side by side find their keys in the L2 cache. So masks whose rows see about as much
    keep the order of heads. A row that sees far more begins before all others, so that none runs alone at the end.
    """
    mean = work.double().mean().clamp_min(1.0)
    classes = (work / mean * 2 + 0.5).int()
    first = torch.arange(0, work.numel(), max(1, work.shape[1]), device=work.device)[: len(work), None]
    return (classes.argsort(dim=1, descending=True, stable=True) + first).flatten().int()
