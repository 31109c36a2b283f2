"""Blocks of any sizes as whole tiles of 64 or 128 tokens, which cuDNN's kernels take. Torch-free.

A block that is no multiple of a tile is followed by padding up to the next tile. The kernels get the true number of
keys of each tile. A sequence whose blocks all begin at multiples of a tile needs no padding, and its last tile may be
shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from longca.masks import BlockSparseMask
from longca.masks.bounds import uniform_bounds
from longca.masks.intervals import ragged

__all__ = ["LARGE", "SMALL", "TiledSide", "in_tiles", "tile_size"]

SMALL, LARGE = 64, 128


@dataclass(frozen=True, eq=False)
class TiledSide:
    """The queries or the keys of a mask in tiles.

    Attributes:
        bounds: Bounds of the blocks: [blocks + 1].
        tile: Tokens of a tile.
    """

    bounds: NDArray[np.int64]
    tile: int

    @cached_property
    def tiles_of_block(self) -> NDArray[np.int64]:
        """Number of tiles of each block: [blocks]."""
        return -(-np.diff(self.bounds) // self.tile)

    @property
    def tokens(self) -> int:
        """Tokens without padding."""
        return int(self.bounds[-1])

    @property
    def num_tiles(self) -> int:
        """Number of tiles."""
        return int(self.tiles_of_block.sum())

    @property
    def is_dense(self) -> bool:
        """Whether no tile but the last has padding."""
        return not (self.bounds[:-1] % self.tile).any()

    @property
    def owner(self) -> NDArray[np.int64]:
        """The block of each tile: [tiles]."""
        return np.repeat(np.arange(len(self.bounds) - 1), self.tiles_of_block)

    @property
    def sizes(self) -> NDArray[np.int32]:
        """Tokens of each tile: int32 [tiles]."""
        sizes = np.full(self.num_tiles, self.tile, np.int32)
        sizes[np.cumsum(self.tiles_of_block) - 1] -= (-np.diff(self.bounds) % self.tile).astype(np.int32)
        return sizes

    @property
    def places(self) -> NDArray[np.int64]:
        """The place of each token among the padded tokens: [tokens]."""
        return ragged(np.arange(self.num_tiles) * self.tile, self.sizes.astype(np.int64))[1]


def tile_size(mask: BlockSparseMask) -> int:
    """The tile for a mask: 128 tokens if all blocks begin at multiples of 128, else 64."""
    starts = np.concatenate([mask.q_bounds[:-1], mask.k_bounds[:-1]])
    return SMALL if (starts % LARGE).any() else LARGE


def in_tiles(mask: BlockSparseMask, tile: int) -> BlockSparseMask:
    """The mask over padded tokens, with a block for each tile. The mask itself if its blocks are the tiles."""
    sides = [TiledSide(bounds, tile) for bounds in (mask.q_bounds, mask.k_bounds)]
    if all(side.is_dense and side.num_tiles == len(side.bounds) - 1 for side in sides):
        return mask
    rows, columns = (side.owner for side in sides)
    kept = np.stack([mask.kept(head)[np.ix_(rows, columns)] for head in range(mask.heads)])
    return BlockSparseMask(kept, *(uniform_bounds(side.num_tiles * tile, tile) for side in sides))
