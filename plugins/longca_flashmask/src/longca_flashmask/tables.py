"""The tables of a mask: each token's intervals, and for each block of rows the runs of tiles that show anything.

Intervals take O(S) memory, and runs are few: full attention over 1 M tokens has 67 million tiles of 128 × 128, in 8192
runs. numpy makes the runs, and one copy takes them to the device. Intervals are written out on the device.

Shapes: the rows of a table by query are queries, and its columns are keys. A table by key is the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca.masks import Mask
from longca.masks.blocks import BlockRuns
from longca.metadata.block_lists import row_offsets
from longca.metadata.interval_tables import interval_tables

__all__ = ["MOST_INTERVALS", "Intervals", "Sheet", "TileArrays", "Tiles", "tile_arrays", "token_intervals"]

#: Most intervals of a query or a key. Kernels are compiled for 1, 2, 4 and 8.
MOST_INTERVALS = 8

_LATE = 0.035  # of a kernel's time: what the order of heads is worth, measured on an H200 at 32 K tokens
_ALIGNMENT = 4  # int32 elements: kernels take their tables for aligned to 16 bytes


@dataclass(frozen=True, eq=False)
class Intervals:
    """Each row's visible columns, as half-open intervals. Unused intervals are empty.

    Attributes:
        starts: int32 [count, rows].
        stops: int32 [count, rows].
    """

    starts: Tensor
    stops: Tensor

    @property
    def count(self) -> int:
        """Intervals a row: 1, 2, 4 or 8."""
        return self.starts.shape[0]


@dataclass(frozen=True, eq=False)
class Tiles:
    """The tiles of each block of rows.

    Attributes:
        rows: One entry for each block of rows: the block, its first run, its number of tiles, one past its last run:
            int32 [blocks, 4]. Blocks with most tiles come first, so that no long block begins late.
        runs: First block and code of each run, ordered by row and first block: int32 [runs + 1, 2]. The code is twice
            one past the last block, + 1 if the tiles are partly masked. The last entry belongs to no row.
        are_plain: Whether no tile is masked and no row has several runs, as in full attention.
        heads_first: Whether programs take all heads of a block before the next block.
    """

    rows: Tensor
    runs: Tensor
    are_plain: bool
    heads_first: bool

    def grid(self, heads: int) -> tuple[int, int]:
        """The programs of a kernel that has one for each block of rows and each of some heads."""
        blocks = self.rows.shape[0]
        return (heads, blocks) if self.heads_first else (blocks, heads)


class TileArrays(NamedTuple):
    """`Tiles` before it is on the device."""

    rows: NDArray[np.int32]
    runs: NDArray[np.int32]
    are_plain: bool

    def heads_first(self, heads: int, programs: int) -> bool:
        """Whether all heads of the longest blocks should begin before any shorter block.

        Programs that go head after head share the keys in the cache. But if the longest block takes longer than all
        blocks of a head together, the last head's longest block ends late, and alone.
        """
        tiles = self.rows[:, 2]
        a_head = tiles.sum(dtype=np.int64) / programs
        return bool(tiles.max(initial=0) - a_head > _LATE * a_head * heads)


class Sheet:
    """int32 arrays that travel to a device in one copy."""

    def __init__(self) -> None:
        self._arrays: list[NDArray[np.int32]] = []
        self._offsets = [0]

    def add(self, *arrays: NDArray[np.int32]) -> slice:
        """Takes some arrays, and returns their places among all arrays."""
        for array in arrays:
            self._arrays.append(array)
            self._offsets.append(self._offsets[-1] + -(-array.size // _ALIGNMENT) * _ALIGNMENT)
        return slice(len(self._arrays) - len(arrays), len(self._arrays))

    def send(self, device: torch.device) -> list[Tensor]:
        """All arrays, on the device, in their order. They share their memory."""
        flat = np.zeros(self._offsets[-1], np.int32)
        for offset, array in zip(self._offsets, self._arrays, strict=False):
            flat[offset : offset + array.size] = array.ravel()
        there = torch.from_numpy(flat).to(device)
        return [
            there[offset : offset + array.size].view(array.shape)
            for offset, array in zip(self._offsets, self._arrays, strict=False)
        ]


def token_intervals(mask: Mask, device: torch.device, *, by_key: bool) -> Intervals:
    """The row or column intervals of a mask: 1, 2, 4 or 8 a row."""
    pieces = mask.head(0).column_pieces if by_key else mask.head(0).row_pieces
    count = max(1, pieces.max_intervals)
    assert count <= MOST_INTERVALS, f"{count} intervals; a mask with more than {MOST_INTERVALS} is not offered"
    return Intervals(*interval_tables(pieces, device, 1 << (count - 1).bit_length()))


def tile_arrays(found: BlockRuns, is_ragged: bool) -> TileArrays:
    """The contents of `Tiles`.

    Args:
        found: Runs of visible tiles.
        is_ragged: Whether the last block of columns has fewer tokens than a block. Its fully visible tiles then count
            as partly masked, because its missing columns must be hidden.
    """
    full, partial = found.full, found.partial
    if is_ragged:
        at_edge = full[:, 2] == found.num_columns
        edge = full[at_edge].copy()
        edge[:, 1] = found.num_columns - 1
        full = full.copy()
        full[at_edge, 2] -= 1
        full = full[full[:, 1] < full[:, 2]]
        partial = np.concatenate([partial, edge])
    runs = np.concatenate([full, partial])
    is_partial = np.arange(len(runs)) >= len(full)
    order = np.argsort(runs[:, 0].astype(np.int64) * (found.num_columns + 1) + runs[:, 1], kind="stable")
    runs, is_partial = runs[order], is_partial[order]

    first = row_offsets(runs, found.num_rows)
    tiles_before = np.r_[0, np.cumsum(runs[:, 2] - runs[:, 1], dtype=np.int64)]
    tiles = np.diff(tiles_before[first])
    longest = np.argsort(-tiles, kind="stable")
    rows = np.stack([longest, first[longest], tiles[longest], first[longest + 1]], axis=1).astype(np.int32)

    table = np.zeros((len(runs) + 1, 2), np.int32)
    table[:-1, 0] = runs[:, 1]
    table[:-1, 1] = 2 * runs[:, 2] + is_partial
    are_plain = not is_partial.any() and bool((np.diff(first) <= 1).all())
    return TileArrays(rows, table, are_plain)
