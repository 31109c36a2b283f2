"""Pair sums: how many tiles of a mask each part of its queries has with each part of its keys, without a cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from longca.masks.blocks import BlockRuns

__all__ = ["Owned", "pair_sums", "tiles_before"]

_Floats = NDArray[np.float64]
_Shares = NDArray[np.float32]
_Ints = NDArray[np.int64]

#: Entries of the largest table of tiles that is made at a time.
_CELLS = 2**21

#: Parts that have tokens of a row of tiles, on average, from which on tables are dense.
_CROWDED = 4


@dataclass(frozen=True, eq=False)
class Owned:
    """The rows of tiles that parts hold tokens of: the row, the part, and the part's share of its tokens: [entries].

    A row at a seam is there for each part that holds some of it.
    """

    tile: _Ints
    part: _Ints
    share: _Shares
    parts: int

    @classmethod
    def of(cls, parts: Sequence[_Ints], size: int) -> Owned:
        """The rows of tiles of so many tokens of parts, which are ranges of tokens: [parts][ranges, 2]."""
        flat = np.concatenate([np.zeros((0, 2), np.int64), *parts])
        owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        first, last = flat[:, 0] // size, -(-flat[:, 1] // size)
        counts = last - first
        begin = np.cumsum(counts) - counts
        tile = np.arange(counts.sum()) - np.repeat(begin - first, counts)
        start, stop = (np.repeat(bound, counts) for bound in flat.T)
        tokens = np.minimum(stop, (tile + 1) * size) - np.maximum(start, tile * size)
        return cls(tile, np.repeat(owner, counts), (tokens / size).astype(np.float32), len(parts))

    def between(self, first: int, last: int) -> Owned:
        """Those of some rows, part after part."""
        mine = np.flatnonzero((self.tile >= first) & (self.tile < last))
        mine = mine[np.argsort(self.part[mine], kind="stable")]
        return Owned(self.tile[mine], self.part[mine], self.share[mine], self.parts)


def tiles_before(parts: Sequence[_Ints], tokens: int, size: int) -> _Shares:
    """The tiles that each part, as ranges of tokens, holds before each column of tiles: [columns + 1, parts]."""
    owned = np.zeros((-(-tokens // size) + 2, len(parts)), np.float32)
    flat = np.concatenate([np.zeros((0, 2), np.int64), *parts])
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    # A part's share of a column rises where a range begins and falls where it ends, in one column or in two.
    for bound, sign in ((flat[:, 0], 1), (flat[:, 1], -1)):
        column, beyond = np.divmod(bound, size)
        np.add.at(owned, (column + 1, owner), sign * (size - beyond) / np.float32(size))
        inside = column + 2 < len(owned)
        np.add.at(owned, (column[inside] + 2, owner[inside]), sign * beyond[inside] / np.float32(size))
    for _ in range(2):  # sums: first the share, then the share before
        np.cumsum(owned, axis=0, out=owned)
    return owned[:-1]


def pair_sums(
    runs: BlockRuns, owned: Owned, before: _Shares, met: _Ints | None = None
) -> tuple[_Floats, _Floats, _Floats]:
    """Full and partial tiles of each part of queries with each part of keys, and the most in one row of tiles.

    `met` has the part of keys that each part of queries meets, or is None for all parts. The three tables are
    [parts of queries, parts of keys], or have a single column if each part meets only one.
    """
    full, partial, longest = np.zeros((3, owned.parts, before.shape[1] if met is None else 1))
    step = max(1, _CELLS // max(1, before.shape[1]))
    # If many parts have tokens of each tile, the maximum is taken over groups of rows.
    together = -(-len(owned.tile) // max(1, runs.num_rows)) if len(owned.tile) > _CROWDED * runs.num_rows else 1
    for first in range(0, runs.num_rows, step):
        rows = range(first, min(first + step, runs.num_rows))
        mine = owned.between(rows.start, rows.stop)
        if not len(mine.part):
            continue
        kinds = [_by_row(kind, rows, before) for kind in (runs.full, runs.partial)]
        for total, tiles in zip((full, partial), kinds, strict=True):
            (_add if together == 1 else _add_crowded)(total, tiles, mine, first, met)
        _raise(longest, kinds[0] + kinds[1], mine, first, together, met)
    return full, partial, longest


def _add(total: _Floats, tiles: _Shares, mine: Owned, first: int, met: _Ints | None) -> None:
    """Adds the tiles of some rows to those of the parts that hold the rows."""
    parts, starts = np.unique(mine.part, return_index=True)
    held = _met(tiles, mine.tile - first, mine.part, met) * mine.share[:, None]
    total[parts] += np.add.reduceat(held, starts, axis=0)


def _add_crowded(total: _Floats, tiles: _Shares, mine: Owned, first: int, met: _Ints | None) -> None:
    """The same where many parts have tokens of each row."""
    shares = np.zeros((len(tiles), len(total)), np.float32)
    np.add.at(shares, (mine.tile - first, mine.part), mine.share)
    total += shares.T @ tiles if met is None else np.einsum("rp,rp->p", shares, tiles[:, met])[:, None]


def _raise(longest: _Floats, tiles: _Shares, mine: Owned, first: int, together: int, met: _Ints | None) -> None:
    """Raises the most in a row of tiles to that of some rows, for the parts that hold them."""
    most = tiles if together == 1 else np.maximum.reduceat(tiles, np.arange(0, len(tiles), together), axis=0)
    part, block = np.divmod(np.unique(mine.part * len(most) + (mine.tile - first) // together), len(most))
    parts, starts = np.unique(part, return_index=True)
    longest[parts] = np.maximum(longest[parts], np.maximum.reduceat(_met(most, block, part, met), starts, axis=0))


def _met(tiles: _Shares, rows: _Ints, parts: _Ints, met: _Ints | None) -> _Shares:
    """Rows of tiles, with the tiles that their part of queries meets: [rows, parts of keys or 1]."""
    return tiles[rows] if met is None else tiles[rows, met[parts]][:, None]


def _by_row(kind: NDArray[np.int32], rows: range, before: _Shares) -> _Shares:
    """Tiles of one kind in some rows of tiles, for each part of keys: [rows, parts]."""
    found = np.zeros((len(rows), before.shape[1]), np.float32)
    mine = kind[np.searchsorted(kind[:, 0], rows.start) : np.searchsorted(kind[:, 0], rows.stop)]
    if len(mine):
        row, starts, counts = np.unique(mine[:, 0] - rows.start, return_index=True, return_counts=True)
        for turn in range(int(counts.max())):  # the first runs of all rows, then the second: quicker than reduceat
            some = counts > turn
            _, start, stop = mine[starts[some] + turn].T
            found[row[some]] += before[stop] - before[start]
    return found
