"""Step works: the work of every step of a layout, from the tiles of the whole mask.

A tile belongs to the parts that hold its tokens, in proportion to their tokens. This needs no cut of the mask, so that
it is fast on any number of ranks. It ignores the tiles at the seams of chunks, which a cut would show as partial.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from longca.manifests import Layout
from longca.manifests.step_cuts import part_areas
from longca.masks import BlockSparseMask, Form, Mask, SliceMask
from longca.plan_cache import PlanCache
from longca_advice.costs import CostModel, Key
from longca_advice.fit import Call, Calls
from longca_advice.pair_sums import Owned, pair_sums, tiles_before
from longca_advice.work import TILE, Work, work_of

__all__ = ["PairTiles", "Pairs", "StepCalls", "pair_tiles", "pairs_of"]

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]

#: Layouts with up to this many pairs distinguish works that differ by 1 %. Larger layouts need 3 %.
_FINE = 2**14

#: Rows of tiles that are kept apart, at most. They cover a million tokens.
_ROWS = 2**13

#: Fewer tiles than this count as none.
_NOTHING = 1e-3


@dataclass(frozen=True, eq=False)
class Pairs:
    """Which queries meet which keys in a layout, each pair once.

    A pair is two parts of `layout.table`: [pairs, 2]. The index is the pair of each step: [ranks, steps], and −1 where
    a rank has fewer steps than others. The query heads and KV heads of a step are the same on every rank.
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
    code = table.table[:, 0] * many + table.table[:, 1]
    met = np.zeros(many * many, np.bool_)
    met[code] = True
    which = (np.cumsum(met) - 1)[code]
    counts = np.diff(table.bounds)
    index = np.full((len(table), int(counts.max(initial=0))), -1, np.int64)
    index[table.ranks, np.arange(len(which)) - np.repeat(table.bounds[:-1], counts)] = which
    (q0, q1), (kv0, kv1) = table.heads[0]
    return Pairs(np.stack(np.divmod(np.flatnonzero(met), many), axis=1), index, (q1 - q0, kv1 - kv0))


@dataclass(frozen=True, eq=False)
class PairTiles:
    """The tiles of the pairs of a layout: the distinct works, and the work of each pair: [pairs].

    Works with small differences are merged. They have no path yet, or the path of a full mask. An empty one is None.
    """

    works: tuple[Work | None, ...]
    which: _Ints

    @property
    def largest(self) -> int:
        """The pair with most tiles."""
        return int(np.array([work.tiles if work else 0.0 for work in self.works])[self.which].argmax())

    def seconds(self, costs: CostModel, key: Key, path: str, heads: tuple[int, int]) -> _Floats | None:
        """The predicted seconds of each pair, by a path for works that have none: [pairs]. None without evidence."""
        works = [work and (work if work.path else replace(work, path=path)) for work in self.works]
        found = StepCalls.of(works, heads).seconds(costs, key)
        return None if found is None else found[self.which]


@dataclass(frozen=True, eq=False)
class StepCalls:
    """The kernel calls of so many steps: those of each family, and the indices of their steps."""

    count: int
    families: tuple[tuple[list[int], Calls], ...]

    @classmethod
    def of(cls, works: Sequence[Work | None], heads: tuple[int, int]) -> StepCalls:
        """The calls of some works of one head, with so many query heads and KV heads."""
        families: dict[str, list[int]] = {}
        for index, work in enumerate(works):
            if work is not None:
                families.setdefault(work.family, []).append(index)
        calls = [work and Call(work, *heads) for work in works]
        each = ((mine, Calls(call for index in mine if (call := calls[index]))) for mine in families.values())
        return cls(len(works), tuple(each))

    def seconds(self, costs: CostModel, key: Key) -> _Floats | None:
        """The predicted seconds of each step, 0 without a call: [steps]. None without evidence."""
        found = np.zeros(self.count)
        for mine, calls in self.families:
            predicted = costs.seconds(key, calls)
            if predicted is None:
                return None
            found[mine] = predicted
        return found


#: The latest tables, of strategies that place tokens alike.
_TILES: PlanCache[PairTiles] = PlanCache(32)


def pair_tiles(mask: Mask, layout: Layout, pairs: Pairs) -> PairTiles:
    """The tiles of each pair of a layout, from those of the whole mask.

    Strategies that place tokens alike have the same pairs. The latest are kept.
    """
    arrays = layout.table.arrays
    about = hashlib.blake2b(b"%d" % len(arrays))
    for array in (pairs.parts, *arrays):
        about.update(b"%d" % len(array) + array.tobytes())
    if isinstance(mask, BlockSparseMask):
        return _TILES.get(mask, about.digest(), lambda: _pair_blocks(mask, arrays, pairs.parts))
    assert isinstance(mask, SliceMask), "rings cut masks of slices and of blocks"
    return _TILES.get(mask, about.digest(), lambda: _pair_tiles(mask, arrays, pairs.parts))


def _pair_blocks(mask: BlockSparseMask, arrays: Sequence[_Ints], pairs: _Ints) -> PairTiles:
    """The tiles of cuts of a block-sparse mask, from their visible pairs. Other shares are those of the whole mask."""
    whole = work_of(mask, Form.BLOCK_SPARSE)
    tokens = np.array([np.diff(array).sum() for array in arrays], np.int64)
    rows, columns = -(-tokens[pairs.T] // TILE)
    full = part_areas(mask, arrays, range(mask.heads))[tuple(pairs.T)] / (mask.heads * TILE**2)
    partial = full * whole.partial / whole.full
    uneven = whole.longest * whole.rows / whole.full
    longest = np.minimum(columns, full / np.maximum(rows, 1) * uneven)
    works, which = _distinct(np.stack([full, partial, longest, rows, columns]))
    return PairTiles(tuple(work and _of_blocks(work, whole.path) for work in works), which)


def _of_blocks(work: Work, path: str) -> Work:
    return replace(work, path=path, longest_column=work.rows * work.full / work.cells)


def _pair_tiles(mask: SliceMask, arrays: Sequence[_Ints], pairs: _Ints) -> PairTiles:
    queries, q_of = np.unique(pairs[:, 0], return_inverse=True)
    keys, k_of = np.unique(pairs[:, 1], return_inverse=True)
    apart = len(pairs) == len(queries) == len(keys)  # each part meets one other part, for instance if keys are gathered
    # Long masks get wider tiles, so that there are no more rows of tiles than _ROWS.
    times = 1
    while max(mask.seqlen_q, mask.seqlen_k) > times * _ROWS * TILE:
        times *= 2
    size = times * TILE
    full, partial, longest = pair_sums(
        mask.blocks(size, size).by_query,
        Owned.of([arrays[part] for part in queries], size),
        tiles_before([arrays[part] for part in keys], mask.seqlen_k, size),
        k_of if apart else None,
    )
    # An edge through a coarse tile goes through as many tiles as it is high, and leaves half of it on each side.
    sums = full * times**2 + partial * times * (times - 1) / 2, partial * times, longest * times
    tokens = [np.array([np.diff(arrays[part]).sum() for part in which], np.int64) for which in (queries, keys)]
    rows, columns = (-(-count // TILE) for count in tokens)
    tables = [table[q_of, 0 if apart else k_of] for table in sums]
    return PairTiles(*_distinct(np.stack([*tables, rows[q_of], columns[k_of]])))


def _distinct(table: _Floats) -> tuple[tuple[Work | None, ...], _Ints]:
    """The works that differ, and which of them each pair's is, from a table with a row for each number: [5, pairs]."""
    code, classes = np.zeros(table.shape[1], np.int64), 100 if table.shape[1] <= _FINE else 30
    for column in table:
        step = np.round(classes * np.log(column + 1)).astype(np.int64)
        code = code * (int(step.max(initial=0)) + 1) + step
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    found: list[Work | None] = []
    for full, partial, longest, rows, columns in table[:, first].T.tolist():
        cells, tiles = rows * columns, full + partial
        path = "full" if partial < _NOTHING and full > 0.999 * cells else ""
        work = Work(path, full, partial, rows, longest, min(rows, tiles), 1, 0, rows, cells)
        found.append(work if tiles > _NOTHING else None)
    return tuple(found), which
