"""BlockSparseMask: per head, a bitmap of which key blocks each query block sees.

The bitmap is packed to bits: 64 heads at 128 K tokens and blocks of 64 take 34 MB.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from longca.errors import MaskError
from longca.masks.blocks import Blocks
from longca.masks.cutting import check_ranges
from longca.masks.forms import Form
from longca.masks.mask import MAX_DENSE_CELLS, Intervals, Mask
from longca.masks.slice_mask import SliceMask
from longca.masks.slices import corner_band, merge

__all__ = ["BlockSparseMask", "uniform_bounds"]


class BlockSparseMask(Mask):
    """A per-head block-sparse mask, with blocks of one size or of any sizes.

    Args:
        kept: Whether each query block sees each key block: bool [heads, query blocks, key blocks], or without the
            first dimension for one mask that all heads share.
        q_bounds: Bounds of the query blocks, strictly ascending from 0 to seqlen_q: [query blocks + 1].
        k_bounds: Bounds of the key blocks, likewise: [key blocks + 1].

    Raises:
        MaskError: Bounds that do not ascend, or a bitmap of another shape than they ask for.
    """

    def __init__(
        self,
        kept: NDArray[np.bool_],
        q_bounds: ArrayLike,
        k_bounds: ArrayLike,
    ) -> None:
        kept = np.asarray(kept, np.bool_)
        kept = kept[None] if kept.ndim == 2 else kept
        self.q_bounds, self.k_bounds = check_bounds(q_bounds, "query"), check_bounds(k_bounds, "key")
        expected = (len(self.q_bounds) - 1, len(self.k_bounds) - 1)
        if kept.ndim != 3 or kept.shape[1:] != expected or not len(kept):
            raise MaskError(f"kept has shape {kept.shape}; these bounds need [heads, {expected[0]}, {expected[1]}]")
        super().__init__(int(self.q_bounds[-1]), int(self.k_bounds[-1]))
        self.bits = np.packbits(kept, axis=-1)
        self.bits.flags.writeable = False

    @property
    def heads(self) -> int:
        """Heads with masks of their own."""
        return len(self.bits)

    @property
    def nbytes(self) -> int:
        """Bytes of the bitmap and the bounds."""
        return self.bits.nbytes + self.q_bounds.nbytes + self.k_bounds.nbytes

    def kept(self, index: int) -> NDArray[np.bool_]:
        """Which key blocks each query block of a head sees: [query blocks, key blocks]."""
        if not 0 <= index < self.heads:
            raise MaskError(f"head {index} of a mask of {self.heads} heads; take one from 0 to {self.heads - 1}")
        return np.unpackbits(self.bits[index], axis=-1, count=len(self.k_bounds) - 1).astype(np.bool_)

    @cached_property
    def block_size(self) -> int | None:
        """Tokens a block where all are of one size (the last may be cut short); None where they are not."""
        sizes = np.concatenate([np.diff(self.q_bounds)[:-1], np.diff(self.k_bounds)[:-1]])
        last = max(np.diff(self.q_bounds)[-1:].max(initial=0), np.diff(self.k_bounds)[-1:].max(initial=0))
        if not len(sizes):
            return int(last)
        return int(sizes[0]) if (sizes == sizes[0]).all() and last <= sizes[0] else None

    @cached_property
    def area_by_head(self) -> NDArray[np.int64]:
        """Visible pairs of each head: int64 [heads]."""
        q, k = np.diff(self.q_bounds), np.diff(self.k_bounds)
        return np.array([int(q @ (self.kept(h) @ k)) for h in range(self.heads)], np.int64)

    @property
    def area(self) -> int:
        """Visible (query, key) pairs, exactly; summed over heads."""
        return sum(self.area_by_head.tolist())

    def dense(self) -> NDArray[np.bool_]:
        """The boolean matrix: [heads, seqlen_q, seqlen_k], or [seqlen_q, seqlen_k] where all heads share it.

        Raises:
            MaskError: It would have more than MAX_DENSE_CELLS entries.
        """
        self._check_dense()
        q, k = np.diff(self.q_bounds), np.diff(self.k_bounds)
        heads = [self.kept(h).repeat(q, axis=0).repeat(k, axis=1) for h in range(self.heads)]
        return heads[0] if len(heads) == 1 else np.stack(heads)

    def cut(
        self,
        q_ranges: Iterable[Sequence[int]],
        k_ranges: Iterable[Sequence[int]],
        heads: Sequence[int] | slice | None = None,
    ) -> BlockSparseMask:
        """The mask between some queries and some keys, and of some heads, re-indexed from 0; see `Mask.cut`.

        Args:
            q_ranges: (start, stop) of the queries kept, ascending and disjoint.
            k_ranges: The same for the keys.
            heads: Which heads to keep, as indices or a slice; None for all.

        Raises:
            MaskError: Ranges outside the mask, descending or overlapping; a head that is not there.
        """
        picked = range(self.heads)[heads] if isinstance(heads, slice) else range(self.heads) if heads is None else heads
        if not len(picked):
            raise MaskError("a cut to no heads; keep at least one")
        q_bounds, q_blocks = _cut_bounds(self.q_bounds, check_ranges(q_ranges, self.seqlen_q, "query"))
        k_bounds, k_blocks = _cut_bounds(self.k_bounds, check_ranges(k_ranges, self.seqlen_k, "key"))
        kept = np.stack([self.kept(int(h))[np.ix_(q_blocks, k_blocks)] for h in picked])
        return BlockSparseMask(kept, q_bounds, k_bounds)

    def head(self, index: int) -> SliceMask:
        """The mask of one head as rectangles: O(runs of kept blocks)."""
        edges = np.diff(np.pad(self.kept(index), ((0, 0), (1, 1))).astype(np.int8), axis=1)
        (row, start), (_, stop) = np.nonzero(edges == 1), np.nonzero(edges == -1)
        q, k = self.q_bounds, self.k_bounds
        slices = np.stack([q[row], q[row + 1], k[start], k[stop], row, row], axis=1)
        slices[:, 4], slices[:, 5] = corner_band(slices)
        return SliceMask(merge(slices), self.seqlen_q, self.seqlen_k)

    def _only_head(self) -> SliceMask:
        if self.heads > 1:
            raise MaskError(f"the {self.heads} heads of this {self.label} differ; convert one at a time: mask.head(h)")
        return self._first_head

    @cached_property
    def _first_head(self) -> SliceMask:
        return self.head(0)

    def row_intervals(self, n: int | None = None) -> Intervals:
        """Each query's keys, where all heads share the mask; see `Mask.row_intervals`."""
        return self._only_head().row_intervals(n)

    def column_intervals(self, n: int | None = None) -> Intervals:
        """Each key's queries, where all heads share the mask; see `Mask.column_intervals`."""
        return self._only_head().column_intervals(n)

    def blocks(self, block_q: int, block_k: int) -> Blocks:
        """Runs of visible blocks, where all heads share the mask; see `Mask.blocks`."""
        return self._only_head().blocks(block_q, block_k)

    def tile_efficiency(self, block_q: int = 128, block_k: int = 128) -> float:
        """Area over the area of the tiles it touches; see `Mask.tile_efficiency`. Read off the bitmap."""
        q_spans, k_spans = _tile_spans(self.q_bounds, block_q), _tile_spans(self.k_bounds, block_k)
        tiles = 0
        for h in range(self.heads):
            # One block more on either axis, for spans that reach the last one.
            rows = np.logical_or.reduceat(np.pad(self.kept(h), (0, 1)), q_spans, axis=0)[::2]
            tiles += int(np.count_nonzero(np.logical_or.reduceat(rows, k_spans, axis=1)[:, ::2]))
        return self.area / (tiles * block_q * block_k) if tiles else 0.0

    def admits(self, form: Form) -> bool:
        """Whether the mask can be written in a form exactly."""
        match form:
            case Form.BLOCK_SPARSE:
                return True
            case Form.DENSE:
                return self.heads * self.seqlen_q * self.seqlen_k <= MAX_DENSE_CELLS
            case Form.FULL:
                return self.area == self.heads * self.seqlen_q * self.seqlen_k
            case _:
                return self.heads == 1 and self._first_head.admits(form)

    def count(self, form: Form) -> int:
        """How many intervals or layers an admitted form takes; 1 for forms that have no count."""
        return self._first_head.count(form) if self.heads == 1 else 1

    @cached_property
    def digest(self) -> str:
        """16 hex digits that are the same for equal masks; where heads differ, of the merged bitmap."""
        if self.heads == 1:
            return self._first_head.digest
        kept = [self.kept(h) for h in range(self.heads)]
        q_keep, k_keep = (np.r_[True, np.any([_changes(each, axis) for each in kept], axis=0)] for axis in (0, 1))
        h = hashlib.blake2b(f"{self.heads} {self.seqlen_q} {self.seqlen_k}".encode(), digest_size=8)
        for bounds, keep in ((self.q_bounds, q_keep), (self.k_bounds, k_keep)):
            h.update(bounds[:-1][keep].astype("<i8").tobytes())
        for each in kept:
            h.update(np.packbits(each[np.ix_(q_keep, k_keep)]).tobytes())
        return h.hexdigest()

    def _shows_same(self, other: Mask) -> bool:
        if not isinstance(other, BlockSparseMask):
            return all(self.head(h)._shows_same(other.head(h)) for h in range(self.heads))
        q_mine, q_theirs = _common_blocks(self.q_bounds, other.q_bounds)
        k_mine, k_theirs = _common_blocks(self.k_bounds, other.k_bounds)
        return all(
            np.array_equal(self.kept(h)[np.ix_(q_mine, k_mine)], other.kept(h)[np.ix_(q_theirs, k_theirs)])
            for h in range(self.heads)
        )


def _changes(kept: NDArray[np.bool_], axis: int) -> NDArray[np.bool_]:
    """Whether each row (axis 0) or column (axis 1) differs from the one before it, from the second on."""
    return (np.diff(kept, axis=axis) != 0).any(axis=1 - axis)


def uniform_bounds(seqlen: int, block: int) -> NDArray[np.int64]:
    """Bounds of blocks of one size, the last cut at the sequence's end."""
    return np.r_[np.arange(0, seqlen, block), seqlen]


def check_bounds(bounds: ArrayLike, axis: str) -> NDArray[np.int64]:
    """Block bounds as int64.

    Raises:
        MaskError: Not integers, not from 0, or not strictly ascending.
    """
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


def _cut_bounds(bounds: NDArray[np.int64], ranges: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Bounds of the blocks that ranges cut out, renumbered, and which block each one came from."""
    points = np.unique(np.concatenate([bounds, ranges.ravel()]))
    inside = np.zeros(len(points), np.int64)
    np.add.at(inside, np.searchsorted(points, ranges[:, 0]), 1)
    np.add.at(inside, np.searchsorted(points, ranges[:, 1]), -1)
    keep = np.cumsum(inside)[:-1] > 0
    sizes = np.diff(points)[keep]
    block = np.searchsorted(bounds, points[:-1][keep], side="right") - 1
    # Parts of one block that lie side by side after the cut are one block again.
    head = np.r_[True, block[1:] != block[:-1]][: len(block)]
    stops = np.cumsum(sizes)
    return np.r_[0, stops[np.r_[head[1:], True][: len(head)]]].astype(np.int64), block[head]


def _tile_spans(bounds: NDArray[np.int64], tile: int) -> NDArray[np.int64]:
    """For each tile the first block in it and one past the last: [2 · tiles], flat as `reduceat` takes them."""
    if tile < 1:
        raise MaskError(f"tiles of {tile} tokens; each side needs at least 1")
    starts = np.arange(0, int(bounds[-1]), tile)
    first = np.searchsorted(bounds, starts, side="right") - 1
    return np.stack([first, np.searchsorted(bounds, np.minimum(starts + tile, bounds[-1]))], axis=1).ravel()


def _common_blocks(a: NDArray[np.int64], b: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For the blocks that both bounds make together: which block of each they lie in."""
    starts = np.union1d(a, b)[:-1]
    return np.searchsorted(a, starts, side="right") - 1, np.searchsorted(b, starts, side="right") - 1
