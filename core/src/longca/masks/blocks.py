"""Block runs: the key blocks that each query block sees fully or partly, as runs (row, start, stop).

A block is *full* when every query in it sees every key in it. An edge block counts only the tokens that it has. A block
is *partial* when some pairs are visible and some are not. The number of runs grows with the number of rows, and the
length of a block list grows with its square. Full attention over 1 M tokens in blocks of 128 takes 8192 runs, or 67
million list entries. The kernels expand the runs to lists on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from longca.masks.intervals import IntervalPieces

__all__ = ["BlockRuns", "Blocks", "block_runs"]

Runs = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class BlockRuns:
    """Runs of visible blocks in each row of blocks: (row, start, stop), ordered, int32 [runs, 3].

    Attributes:
        num_rows: Rows of blocks.
        num_columns: Columns of blocks.
        full: Runs of fully visible blocks.
        partial: Runs of partly visible blocks.
    """

    num_rows: int
    num_columns: int
    full: Runs
    partial: Runs

    @property
    def num_full(self) -> int:
        """Fully visible blocks."""
        return _count(self.full)

    @property
    def num_partial(self) -> int:
        """Partly visible blocks."""
        return _count(self.partial)

    def dense(self) -> NDArray[np.int8]:
        """Visibility of each block as int8 [num_rows, num_columns]: 0 is none, 1 is partly, 2 is fully."""
        out = np.zeros((self.num_rows, self.num_columns), np.int8)
        for value, runs in ((1, self.partial), (2, self.full)):
            for row, start, stop in runs.tolist():
                out[row, start:stop] = value
        return out


@dataclass(frozen=True, eq=False)
class Blocks:
    """A mask's visible blocks of `block_q` × `block_k` tokens, by query block and by key block."""

    block_q: int
    block_k: int
    row_pieces: IntervalPieces
    column_pieces: IntervalPieces

    @cached_property
    def by_query(self) -> BlockRuns:
        """Runs of key blocks in each query block. A forward pass reads them in this order."""
        return block_runs(self.row_pieces, int(self.column_pieces.rows[-1]), self.block_q, self.block_k)

    @cached_property
    def by_key(self) -> BlockRuns:
        """Runs of query blocks in each key block. A backward pass that gathers dk and dv reads them in this order."""
        return block_runs(self.column_pieces, int(self.row_pieces.rows[-1]), self.block_k, self.block_q)


def block_runs(
    pieces: IntervalPieces,
    num_keys: int,
    block_q: int,
    block_k: int,
    queries: NDArray[np.int64] | None = None,
    keys: NDArray[np.int64] | None = None,
) -> BlockRuns:
    """The runs of blocks of [block_q, block_k] tokens that the row intervals touch.

    The intervals of several masks may be stacked, if each begins at a row of blocks. `num_keys` is then that of the
    longest mask. `queries` and `keys` are the queries in each row of blocks, and the keys of its mask.
    """
    num_queries = int(pieces.rows[-1])
    num_rows, num_columns = -(-num_queries // block_q), -(-num_keys // block_k)
    if queries is None:
        queries = np.minimum(block_q, num_queries - np.arange(num_rows) * block_q)
    if keys is None:
        keys = np.full(num_rows, num_keys)
    pieces = pieces.split_rows(np.arange(0, num_queries, block_q))
    heights = pieces.heights[pieces.segment]
    row = pieces.rows[pieces.segment] // block_q
    last = heights - 1
    # The ends of a piece only move forward, one key a row. So some row of the piece sees the keys from the first row's
    # start to the last row's stop. Every row sees the keys from the last row's start to the first row's stop.
    touch_start, touch_stop = pieces.start, pieces.stop + pieces.stop_step * last
    cover_start, cover_stop = pieces.start + pieces.start_step * last, pieces.stop
    whole_start = -(-cover_start // block_k)
    whole_stop = np.where(cover_stop == keys[row], -(-cover_stop // block_k), cover_stop // block_k)
    covered = whole_start < whole_stop
    touched = _sweep(
        row,
        touch_start // block_k,
        -(-touch_stop // block_k),
        np.ones_like(row),
        np.ones(num_rows),
        num_columns,
    )
    full = _sweep(
        row[covered],
        whole_start[covered],
        whole_stop[covered],
        heights[covered],
        queries,
        num_columns,
    )
    return BlockRuns(num_rows, num_columns, _runs(full, num_columns), _runs(_subtract(touched, full), num_columns))


def _sweep(
    row: NDArray[np.int64],
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
    weight: NDArray[np.int64],
    need: NDArray[np.generic],
    num_columns: int,
) -> NDArray[np.int64]:
    """Maximal stretches of blocks on which the weights of the covering ranges reach the need of their row: [n, 2].

    Blocks are numbered through all rows, with one spare column in each, so that no stretch runs into the next row.
    """
    stride = num_columns + 1
    where = np.concatenate([row * stride + start, row * stride + stop])
    points, inverse = np.unique(where, return_inverse=True)
    change = np.zeros(len(points), np.int64)
    np.add.at(change, inverse, np.concatenate([weight, -weight]))
    level = np.cumsum(change)
    reached = level >= need[np.minimum(points // stride, len(need) - 1)]
    edges = np.flatnonzero(np.diff(np.r_[False, reached, False].astype(np.int8)))
    return points[edges].reshape(-1, 2)


def _subtract(touched: NDArray[np.int64], full: NDArray[np.int64]) -> NDArray[np.int64]:
    """The stretches of `touched` outside `full`. Every stretch of `full` lies within `touched`."""
    points = np.concatenate([touched.ravel(), full.ravel()])
    change = np.concatenate([np.tile([1, -1], len(touched)), np.tile([-1, 1], len(full))])
    order = np.argsort(points, kind="stable")
    level, points = np.cumsum(change[order]), points[order]
    keep = np.flatnonzero((level[:-1] == 1) & (points[:-1] < points[1:]))
    return np.stack([points[keep], points[keep + 1]], axis=1)


def _runs(stretches: NDArray[np.int64], num_columns: int) -> Runs:
    row, start = np.divmod(stretches[:, 0], num_columns + 1)
    return np.stack([row, start, start + stretches[:, 1] - stretches[:, 0]], axis=1).astype(np.int32)


def _count(runs: Runs) -> int:
    return int((runs[:, 2].astype(np.int64) - runs[:, 1]).sum())
