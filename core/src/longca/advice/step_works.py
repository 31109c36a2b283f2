"""Step works: what every step of a layout computes, exactly or from the tiles of the whole mask.

Exactly, the mask is cut for each pair of queries and keys that meet. From the whole mask, a tile belongs to the ranks
that hold its tokens, in the shares in which they do; that takes no cut, so that it is quick on any number of ranks, and
it passes over what cutting costs: tiles at the seams of chunks that are seen in part.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from longca.advice.work import TILE, Work
from longca.manifests import Layout
from longca.masks import Mask, SliceMask
from longca.masks.blocks import BlockRuns

__all__ = ["PairTiles", "Pairs", "pair_tiles", "pairs_of"]

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]

#: Tables that are kept for other strategies.
_KEPT = 16
_MADE: dict[str, PairTiles] = {}

#: Tiles that are none.
_NOTHING = 1e-3

#: Entries of the largest table of tiles that is made at a time.
_CELLS = 2**22


@dataclass(frozen=True, eq=False)
class Pairs:
    """Which queries meet which keys in a layout, each pair once.

    Attributes:
        parts: The pairs, as parts of `layout.table`: [pairs, 2].
        index: The pair of each step: [ranks, steps]; −1 where a rank has fewer steps than others.
        heads: Query heads and KV heads of a step; the same on every rank.
    """

    parts: _Ints
    index: _Ints
    heads: tuple[int, int]

    def seconds(self, of_pairs: _Floats) -> _Floats:
        """The seconds of each step of those of the pairs: [ranks, steps]."""
        return np.where(self.index < 0, 0.0, of_pairs[self.index])


def pairs_of(layout: Layout) -> Pairs:
    """The pairs of a layout."""
    table = layout.table
    many = max(1, len(table.parts))
    code, which = np.unique(table.table[:, 0] * many + table.table[:, 1], return_inverse=True)
    counts = np.diff(table.bounds)
    index = np.full((len(table), int(counts.max(initial=0))), -1, np.int64)
    index[table.ranks, np.arange(len(which)) - np.repeat(table.bounds[:-1], counts)] = which
    (q0, q1), (kv0, kv1) = table.heads[0]
    return Pairs(np.stack(np.divmod(code, many), axis=1), index, (q1 - q0, kv1 - kv0))


@dataclass(frozen=True, eq=False)
class PairTiles:
    """The tiles of pairs, from those of the whole mask.

    Attributes:
        full: Tiles that are visible as a whole: [pairs].
        partial: Tiles that are visible in part: [pairs].
        longest: Tiles of the longest row: [pairs].
        rows: Rows of tiles of the queries: [pairs].
        columns: Rows of tiles of the keys: [pairs].
    """

    full: _Floats
    partial: _Floats
    longest: _Floats
    rows: _Floats
    columns: _Floats

    def works(self, path: str) -> tuple[list[Work | None], _Ints]:
        """The works of the pairs, each once, and which of them each pair's is: [pairs].

        Works that differ by less than a hundredth are one. A pair that shows nothing has None.

        Args:
            path: The path of works that are not of a full mask.
        """
        table = np.stack((self.full, self.partial, self.longest, self.rows, self.columns), axis=1)
        rough = np.round(100 * np.log(table + 1)).astype(np.int64)
        _, first, which = np.unique(rough, axis=0, return_index=True, return_inverse=True)
        found: list[Work | None] = []
        for full, partial, longest, rows, columns in table[first].tolist():
            cells, tiles = rows * columns, full + partial
            of = "full" if partial < _NOTHING and full > 0.999 * cells else path
            work = Work(of, full, partial, rows, longest, min(rows, tiles), 1, 0, rows, cells)
            found.append(work if tiles > _NOTHING else None)
        return found, which.reshape(-1)


def pair_tiles(mask: Mask, layout: Layout, pairs: Pairs) -> PairTiles:
    """The tiles of each pair of a layout, from those of the whole mask.

    Strategies that place tokens alike have the same pairs; the latest are kept.

    Args:
        mask: The mask of all tokens: of slices, where ranks cut it.
        layout: Who computes what.
        pairs: Its pairs.
    """
    assert isinstance(mask, SliceMask), "rings cut masks of slices alone"
    arrays = layout.table.arrays
    content = (mask.key, pairs.parts.tobytes(), *(array.tobytes() for array in arrays))
    digest = hashlib.blake2b(repr([hash(part) for part in content]).encode()).hexdigest()
    if digest not in _MADE:
        if len(_MADE) >= _KEPT:
            del _MADE[next(iter(_MADE))]
        _MADE[digest] = _pair_tiles(mask, arrays, pairs)
    return _MADE[digest]


def _pair_tiles(mask: SliceMask, arrays: tuple[_Ints, ...], pairs: Pairs) -> PairTiles:
    queries, q_of = np.unique(pairs.parts[:, 0], return_inverse=True)
    keys, k_of = np.unique(pairs.parts[:, 1], return_inverse=True)
    q_owned, k_owned = (
        _owned(mask.seqlen_q, [arrays[i] for i in queries]),
        _owned(mask.seqlen_k, [arrays[i] for i in keys]),
    )
    runs = mask.blocks(TILE, TILE).by_query
    totals, longest = _sums(runs, q_owned, k_owned)
    tokens = [np.array([np.diff(arrays[i]).sum() for i in which]) for which in (queries, keys)]
    rows, columns = (-(-count // TILE) for count in tokens)
    return PairTiles(
        full=totals[0][q_of, k_of],
        partial=totals[1][q_of, k_of],
        longest=longest[q_of, k_of],
        rows=rows[q_of].astype(np.float64),
        columns=columns[k_of].astype(np.float64),
    )


def _owned(tokens: int, parts: list[_Ints]) -> NDArray[np.float32]:
    """The share of each tile's tokens that each part holds: [tiles, parts]."""
    tiles = -(-tokens // TILE)
    owned = np.zeros((tiles, len(parts)), np.float32)
    for column, ranges in enumerate(parts):
        # Tokens of the part before each bound of tiles, from its ranges.
        before = np.r_[0, np.cumsum(np.diff(ranges, axis=1)[:, 0])]
        bounds = np.minimum(np.arange(tiles + 1) * TILE, tokens)
        place = np.searchsorted(ranges[:, 0], bounds, side="right")
        inside = np.zeros(len(bounds))
        seen = place > 0
        last = ranges[place[seen] - 1]
        inside[seen] = before[place[seen] - 1] + np.minimum(bounds[seen] - last[:, 0], last[:, 1] - last[:, 0])
        owned[:, column] = np.diff(inside) / TILE
    return owned


def _sums(
    runs: BlockRuns, q_owned: NDArray[np.float32], k_owned: NDArray[np.float32]
) -> tuple[tuple[_Floats, _Floats], _Floats]:
    """Full and partial tiles of each part of queries and each of keys, and the most in one row of tiles."""
    before = np.vstack([np.zeros((1, k_owned.shape[1]), np.float32), np.cumsum(k_owned, axis=0, dtype=np.float32)])
    full, partial, longest = np.zeros((3, q_owned.shape[1], k_owned.shape[1]))
    step = max(1, _CELLS // max(1, k_owned.shape[1]))
    for first in range(0, runs.num_rows, step):
        last = min(first + step, runs.num_rows)
        seen = np.zeros((last - first, k_owned.shape[1]), np.float32)
        for total, kind in ((full, runs.full), (partial, runs.partial)):
            mine = kind[np.searchsorted(kind[:, 0], first) : np.searchsorted(kind[:, 0], last)]
            if len(mine):
                rows, starts = np.unique(mine[:, 0], return_index=True)
                tiles = np.add.reduceat(before[mine[:, 2]] - before[mine[:, 1]], starts, axis=0)
                total += q_owned[rows].T @ tiles
                seen[rows - first] += tiles
        held, part = np.nonzero(q_owned[first:last] > 0)
        order = np.argsort(part, kind="stable")
        parts, starts = np.unique(part[order], return_index=True)
        if len(parts):
            most = np.maximum.reduceat(seen[held[order]], starts, axis=0)
            longest[parts] = np.maximum(longest[parts], most)
    return (full, partial), longest
