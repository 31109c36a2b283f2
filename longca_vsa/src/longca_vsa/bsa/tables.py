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
            program's head is a KV head, a query head, or a group of packed heads.
    """

    table: Tensor
    order: Tensor

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


def make_tiles(bounds: NDArray[np.int64], packed: int, block: int, steps: Tensor, heads: int) -> Tiles:
    """The tiles of one kernel, and the order of its programs.

    Args:
        bounds: Bounds of the rows' blocks: [blocks + 1].
        packed: Heads a token.
        block: Rows a tile.
        steps: The steps of each block's programs, by mask head: int32 [mask heads, blocks].
        heads: The heads of the programs of one tile. A multiple of the mask heads.
    """
    table = torch.from_numpy(tile_array(bounds, packed, block)).to(steps.device)
    work = steps[:, table[:, 3].long()].repeat_interleave(heads // len(steps), dim=0)
    return Tiles(table, _longest_first(work.flatten()))


def _longest_first(work: Tensor) -> Tensor:
    """Programs in the order of their work, in classes half the mean apart. A class keeps their present order.

    Programs of one head that run side by side find their keys in the L2 cache. So masks whose rows see about as much
    keep the order of heads. A row that sees far more begins before all others, so that none runs alone at the end.
    """
    mean = work.double().mean().clamp_min(1.0)
    classes = (work / mean * 2 + 0.5).int()
    return classes.argsort(descending=True, stable=True).int()
