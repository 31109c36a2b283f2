"""Bounds of blocks: the token at which each block of a sequence begins, and the end of the last one."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from longca.errors import MaskError

__all__ = ["check_bounds", "cut_bounds", "kept_count", "tile_spans", "uniform_bounds"]


def uniform_bounds(seqlen: int, block: int) -> NDArray[np.int64]:
    """Bounds of blocks of one size. The last block ends at the end of the sequence."""
    return np.r_[np.arange(0, seqlen, block), seqlen]


def check_bounds(bounds: ArrayLike, axis: str) -> NDArray[np.int64]:
    """Returns block bounds as an int64 array, or raises MaskError if they do not strictly ascend from 0."""
    try:
        array = np.asarray(bounds)
    except ValueError:  # lists of unequal lengths
        array = np.empty((0, 0))
    if array.ndim != 1 or not len(array) or not np.issubdtype(array.dtype, np.integer):
        raise MaskError(f"{axis} block bounds must be a list of integers from 0 to the sequence length")
    array = array.astype(np.int64)
    if array[0] != 0:
        raise MaskError(f"{axis} block bounds start at {array[0]}; they must start at 0")
    down = np.flatnonzero(np.diff(array) <= 0)
    if len(down):
        raise MaskError(f"{axis} block bounds must ascend, but {array[down[0]]} is followed by {array[down[0] + 1]}")
    return array


def cut_bounds(bounds: NDArray[np.int64], ranges: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Bounds of the blocks that the ranges cut out, renumbered, and the index of the old block of each new one."""
    points = np.unique(np.concatenate([bounds, ranges.ravel()]))
    inside = np.zeros(len(points), np.int64)
    np.add.at(inside, np.searchsorted(points, ranges[:, 0]), 1)
    np.add.at(inside, np.searchsorted(points, ranges[:, 1]), -1)
    keep = np.cumsum(inside)[:-1] > 0
    sizes = np.diff(points)[keep]
    block = np.searchsorted(bounds, points[:-1][keep], side="right") - 1
    # Two parts of one block that are neighbours after the cut become one block again.
    head = np.r_[True, block[1:] != block[:-1]][: len(block)]
    stops = np.cumsum(sizes)
    return np.r_[0, stops[np.r_[head[1:], True][: len(head)]]].astype(np.int64), block[head]


def tile_spans(bounds: NDArray[np.int64], tile: int) -> NDArray[np.int64]:
    """The first block in each tile and one past the last: [2 · tiles], flat, in the form that `reduceat` takes."""
    if tile < 1:
        raise MaskError(f"tiles of {tile} tokens; each side needs at least 1")
    starts = np.arange(0, int(bounds[-1]), tile)
    first = np.searchsorted(bounds, starts, side="right") - 1
    return np.stack([first, np.searchsorted(bounds, np.minimum(starts + tile, bounds[-1]))], axis=1).ravel()


def kept_count(kept: float, blocks: int) -> int:
    """The share `kept` of a number of blocks, rounded down, but at least one block."""
    return max(1, int(kept * blocks + 1e-9))
