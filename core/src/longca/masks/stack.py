"""MaskStack: many masks of slices at once, and the forms that each admits, in closed forms over whole arrays.

A layout cuts one mask into one mask for each step: a thousand for 32 ranks, a million for 1024 ranks. A stack answers
for all of them in one pass. `SliceMask` asks a stack of one. The rows of its masks are stacked, so one set of
interval pieces stores the intervals of all masks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from longca.limits import MAX_DENSE_CELLS, MAX_SEQLEN
from longca.masks import forms, layering
from longca.masks.blocks import block_runs
from longca.masks.cutting import cut_many
from longca.masks.forms import Form, Varlen, Window
from longca.masks.intervals import IntervalPieces, interval_pieces
from longca.masks.mask import Mask
from longca.masks.slice_mask import SliceMask
from longca.masks.slices import UNBOUNDED, SliceArray, area, merge, transpose, trim
from longca.plan_cache import PlanCache

__all__ = ["MaskStack"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: The latest answers of `MaskStack.has_layers`. A layout is cut again for each kernel and role that asks for it.
_FEW_LAYERS: PlanCache[bool] = PlanCache(2**14)


class MaskStack:
    """Masks of slices, each with its own lengths.

    Args:
        array: The tight slices of all masks: [slices, 6]. The slices of one mask are disjoint.
        owner: The index of each slice's mask, ascending: [slices].
        seqlens_q: Queries of each mask: [masks].
        seqlens_k: Keys of each mask: [masks].
        whole: The mask that all masks are cut from, or None. Its number of intervals bounds theirs.
    """

    def __init__(
        self, array: SliceArray, owner: Ints, seqlens_q: Ints, seqlens_k: Ints, whole: SliceMask | None = None
    ) -> None:
        self.array, self.owner = array, owner
        self.seqlens_q, self.seqlens_k = seqlens_q, seqlens_k
        self._whole = whole
        self._first = np.searchsorted(owner, np.arange(len(seqlens_q) + 1))
        self._admitted: dict[Form, Bools] = {}

    @classmethod
    def of_cuts(cls, mask: SliceMask, q_parts: Sequence[Ints], k_parts: Sequence[Ints], pairs: Ints) -> MaskStack:
        """The cuts of one mask to `pairs` [cuts, 2] of a query part and a key part.

        Parts are ranges, ascending, disjoint and not empty: [parts][ranges, 2].
        """
        sizes_q, sizes_k = (np.array([int(np.diff(part).sum()) for part in parts]) for parts in (q_parts, k_parts))
        array, owner = cut_many(mask.array, q_parts, k_parts, pairs)
        return cls(array, owner, sizes_q[pairs[:, 0]], sizes_k[pairs[:, 1]], mask)

    @classmethod
    def of(cls, masks: Sequence[SliceMask]) -> MaskStack:
        """Several masks."""
        arrays = [_slices_of(mask) for mask in masks]
        owner = np.repeat(np.arange(len(masks)), [len(array) for array in arrays])
        seqlens_q, seqlens_k = np.array([(mask.seqlen_q, mask.seqlen_k) for mask in masks], np.int64).T
        return cls(np.concatenate(arrays), owner, seqlens_q, seqlens_k)

    def __len__(self) -> int:
        return len(self.seqlens_q)

    def slices(self, index: int) -> SliceArray:
        """The slices of one mask."""
        return self.array[self._first[index] : self._first[index + 1]]

    def mask(self, index: int) -> SliceMask:
        """One of the masks, as a cut returns it. It asks the stack about forms, and merges its slices lazily."""
        return _StackedMask(self, index)

    @cached_property
    def areas(self) -> Ints:
        """Number of visible pairs of each mask: [masks]."""
        return self._reduced(np.add, area(self.array), 0)

    @cached_property
    def row_counts(self) -> Ints:
        """The largest number of key intervals of any query, for each mask: [masks]."""
        return self._most_intervals(self.row_pieces, self.seqlens_q)

    @cached_property
    def column_counts(self) -> Ints:
        """The largest number of query intervals of any key, for each mask: [masks]."""
        return self._most_intervals(self._stacked(transpose(self.array), self.seqlens_k), self.seqlens_k)

    @cached_property
    def row_pieces(self) -> IntervalPieces:
        """The row intervals of all masks, with their rows stacked."""
        return self._stacked(self.array, self.seqlens_q)

    def admits(self, form: Form) -> Bools:
        """Whether the form can express each mask exactly. See `SliceMask.admits`."""
        if form not in self._admitted:
            self._admitted[form] = self._find_admitted(form)
        return self._admitted[form]

    def _find_admitted(self, form: Form) -> Bools:
        match form:
            case Form.FULL:
                return self.areas == self.seqlens_q * self.seqlens_k
            case Form.CAUSAL:
                return self._are_causal()
            case Form.WINDOW:
                return self._windows[0]
            case Form.VARLEN:
                return self._varlen[0]
            case Form.BLOCK_SPARSE:
                return np.zeros(len(self), np.bool_)
            case Form.DENSE:
                return self.seqlens_q * self.seqlens_k <= MAX_DENSE_CELLS
            case Form.LAYERS | Form.ROW_INTERVALS | Form.COLUMN_INTERVALS:
                return np.ones(len(self), np.bool_)

    def at_most(self, form: Form, most: int) -> Bools:
        """Whether each mask takes at most `most` row intervals or column intervals. See `SliceMask.count`."""
        # Leaving out keys joins or shortens the intervals of a row. It makes no new ones.
        if self._whole is not None and self._whole.count(form) <= most:
            return np.ones(len(self), np.bool_)
        return (self.row_counts if form is Form.ROW_INTERVALS else self.column_counts) <= most

    def layer_bounds(self, most: int) -> tuple[Bools, Bools]:
        """Which masks certainly take at most `most` layers, and which masks `has_layers` must decide."""
        few = (self._varlen[0] & (most >= 1)) | (self.areas == 0)
        # A layer shows each query one interval of keys, and each key one interval of queries.
        return few, ~few & (self.row_counts <= most) & (self.column_counts <= most)

    def has_layers(self, index: int, most: int) -> bool:
        """Whether one mask takes at most `most` layers. Masks with the same slices share one answer, in any stack."""
        slices = self.slices(index)
        digest = hashlib.blake2b(slices.tobytes(), digest_size=16).digest()
        return _FEW_LAYERS.get(None, (most, digest), lambda: layering.fit_layers(merge(slices), most))

    def documents(self, index: int) -> Varlen | None:
        """The documents of one mask, or None if it does not consist of some that share a window."""
        found, mask, documents = self._varlen
        if not found[index]:
            return None
        base = int(self.seqlens_q[:index].sum())
        mine = documents[slice(*np.searchsorted(mask, (index, index + 1)))] + np.array([-1, -1, 0, 0, 1, 1]) * base
        return forms.pack(mine, int(self.seqlens_q[index]), int(self.seqlens_k[index]))

    @cached_property
    def _varlen(self) -> tuple[Bools, Ints, SliceArray]:
        """Whether each mask consists of documents, the mask of each document, and the documents, in stacked rows."""
        found = self.row_counts == 1
        parts = forms.pieces_to_slices(self.row_pieces)
        mask = self._owners(parts[:, 0], self.seqlens_q)
        parts, mask = parts[found[mask]], mask[found[mask]]
        if not len(parts):
            return found, mask, parts
        # All keys of one mask come before the keys of the next, so no document spans two masks.
        apart = mask * MAX_SEQLEN * 2
        seen_before = np.maximum.accumulate((parts[:, 3] + apart)[:-1])
        seen_after = np.minimum.accumulate((parts[:, 2] + apart)[:0:-1])[::-1]
        first = np.r_[0, np.flatnonzero(seen_before <= seen_after) + 1]
        documents = np.minimum.reduceat(parts, first)
        documents[:, [1, 3, 5]] = np.maximum.reduceat(parts, first)[:, [1, 3, 5]]
        mask = mask[first]
        found[mask[_area(documents) != np.add.reduceat(area(parts), first)]] = False
        # A diagonal fits any window once it is split into documents of one token.
        bands = documents[:, 4] < documents[:, 5]
        left, right, left_binds, right_binds = forms.local_windows(documents[bands])
        for reach, binds in ((left, left_binds == 1), (right, right_binds == 1)):
            found &= self._can_share(mask[bands], reach, binds)
        return found, mask, documents

    def tile_sums(self, tile: int) -> NDArray[np.float64]:
        """Sums over the tiles of `tile` × `tile` tokens that each mask touches, edge tiles included: [masks, 5].

        The columns are the full tiles, the partial ones, the rows of tiles that have any, the tiles of the longest row,
        and those of the longest column.
        """
        full, partial, most, rows = self._tiles_of_rows(self.array, self.seqlens_q, self.seqlens_k, tile)
        by_key = self._tiles_of_rows(transpose(self.array), self.seqlens_k, self.seqlens_q, tile)
        return np.stack([full, partial, rows, most, by_key[2]], axis=1)

    def _tiles_of_rows(self, slices: SliceArray, seqlens: Ints, others: Ints, tile: int) -> NDArray[np.float64]:
        """Full and partial tiles of each mask, the most in a row of tiles, and the rows that have any: [4, masks]."""
        rows = -(-seqlens // tile)
        owner, ends = np.repeat(np.arange(len(self)), rows), np.cumsum(rows)
        place = np.arange(len(owner)) - np.repeat(ends - rows, rows)
        inside = np.minimum(tile, seqlens[owner] - place * tile)
        pieces = self._stacked(slices, rows * tile)
        touched = block_runs(pieces, int(others.max(initial=0)), tile, tile, inside, others[owner])
        full, partial = (
            np.bincount(runs[:, 0], runs[:, 2] - runs[:, 1], len(owner)) for runs in (touched.full, touched.partial)
        )
        most = np.zeros(len(self))
        np.maximum.at(most, owner, full + partial)
        whole, partly, some = (np.bincount(owner, each, len(self)) for each in (full, partial, full + partial > 0))
        return np.stack([whole, partly, most, some])

    def _are_causal(self) -> Bools:
        shift = self.seqlens_k - self.seqlens_q
        highest = self._reduced(np.maximum, self.array[:, 5], UNBOUNDED)
        return (highest <= shift) & (_area(self._bands(np.full(len(self), -UNBOUNDED), shift)) == self.areas)

    def window(self, index: int) -> Window | None:
        """The window that equals one mask, or None if the mask is no single band."""
        found, left, right, left_binds, right_binds = (each[index] for each in self._windows)
        if not found:
            return None
        return Window(int(left) if left_binds else None, int(right) if right_binds else None)

    @cached_property
    def _windows(self) -> tuple[Bools, Ints, Ints, Ints, Ints]:
        """Whether each mask is one band, and the sides of that band as in `forms.local_windows`: [masks] each."""
        lowest = self._reduced(np.minimum, self.array[:, 4], UNBOUNDED)
        highest = self._reduced(np.maximum, self.array[:, 5], -UNBOUNDED)
        bands = self._bands(lowest, highest)
        left, right, left_binds, right_binds = forms.local_windows(bands)
        found = (self.areas > 0) & (_area(bands) == self.areas) & (left >= 0) & (right >= 0)
        return found, left, right, left_binds, right_binds

    def _bands(self, lo: Ints, hi: Ints) -> SliceArray:
        """One slice for each mask, over all its queries and keys."""
        none = np.zeros(len(self), np.int64)
        return np.stack([none, self.seqlens_q, none, self.seqlens_k, lo, hi], axis=1)

    def _can_share(self, mask: Ints, reach: Ints, binds: Bools) -> Bools:
        """Whether the documents of each mask can share one side of a window."""
        lowest, highest = np.full(len(self), UNBOUNDED), np.full(len(self), -UNBOUNDED)
        least = np.zeros(len(self), np.int64)
        np.minimum.at(lowest, mask[binds], reach[binds])
        np.maximum.at(highest, mask[binds], reach[binds])
        np.maximum.at(least, mask[~binds], reach[~binds])
        return (lowest > highest) | ((lowest == highest) & (least <= lowest))

    def _stacked(self, slices: SliceArray, heights: Ints) -> IntervalPieces:
        base = np.cumsum(heights) - heights
        shift = base[self.owner]
        moved = slices.copy()
        moved[:, :2] += shift[:, None]
        moved[:, 4:] -= shift[:, None]
        return interval_pieces(moved, int(heights.sum()))

    def _owners(self, rows: Ints, heights: Ints) -> Ints:
        """The index of the mask of each stacked row."""
        return np.searchsorted(np.cumsum(heights), rows, side="right")

    def _most_intervals(self, pieces: IntervalPieces, heights: Ints) -> Ints:
        most = np.zeros(len(self), np.int64)
        np.maximum.at(most, self._owners(pieces.rows[pieces.segment], heights), pieces.slot + 1)
        return most

    def _reduced(self, how: np.ufunc, values: Ints, nothing: int) -> Ints:
        """Values of slices, reduced over each mask."""
        out = np.full(len(self), nothing, np.int64)
        some = np.flatnonzero(np.diff(self._first))
        if len(some):
            out[some] = how.reduceat(values, self._first[some])
        return out


class _StackedMask(SliceMask):
    """One mask of a stack. It merges its slices on first use."""

    def __init__(self, stack: MaskStack, index: int) -> None:
        Mask.__init__(self, int(stack.seqlens_q[index]), int(stack.seqlens_k[index]))
        self._in_stack = stack, index

    @cached_property
    def array(self) -> SliceArray:  # type: ignore[override]
        stack, index = self._in_stack
        return merge(stack.slices(index))

    @cached_property
    def area(self) -> int:
        stack, index = self._in_stack
        return int(stack.areas[index])


def _slices_of(mask: SliceMask) -> SliceArray:
    """The slices of a mask, not merged if it is one of a stack."""
    if isinstance(mask, _StackedMask):
        stack, index = mask._in_stack
        return stack.slices(index)
    return mask.array


def _area(slices: SliceArray) -> Ints:
    """Number of visible pairs of slices that need not be tight. 0 for slices that show nothing."""
    trimmed, keep = trim(slices)
    return np.where(keep, area(trimmed), 0)
