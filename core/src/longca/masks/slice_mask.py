"""SliceMask: a mask of disjoint slices, the same for every head."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from longca.errors import MaskError
from longca.masks import cutting, layering
from longca.masks.blocks import Blocks
from longca.masks.forms import Form, Varlen, Window
from longca.masks.intervals import IntervalPieces, interval_pieces
from longca.masks.mask import Intervals, Mask
from longca.masks.slices import Slice, SliceArray, area, from_slices, to_slices, transpose

if TYPE_CHECKING:
    from longca.masks.stack import MaskStack

__all__ = ["SliceMask"]


class SliceMask(Mask):
    """A mask of disjoint slices. It takes O(slices) of memory for any sequence length.

    Args:
        slices: Disjoint slices, or a tight array of them.
        seqlen_q: Number of queries.
        seqlen_k: Number of keys.

    Raises:
        MaskError: A slice reaches outside the mask, or two slices overlap.
    """

    def __init__(
        self,
        slices: Iterable[Slice] | SliceArray,
        seqlen_q: int,
        seqlen_k: int,
    ) -> None:
        super().__init__(seqlen_q, seqlen_k)
        trusted = isinstance(slices, np.ndarray)
        self.array: SliceArray = slices if isinstance(slices, np.ndarray) else from_slices(slices)
        self.array.flags.writeable = False
        if not trusted:
            self._check()

    def _check(self) -> None:
        reach_q, reach_k = self.array[:, 1].max(initial=0), self.array[:, 3].max(initial=0)
        if reach_q > self.seqlen_q or reach_k > self.seqlen_k:
            raise MaskError(
                f"a slice reaches query {reach_q} and key {reach_k} of a mask of {self.seqlen_q} × {self.seqlen_k}"
            )
        if self.row_pieces.overlaps():
            raise MaskError("slices overlap; give slices that share no (query, key) pair")

    @cached_property
    def slices(self) -> tuple[Slice, ...]:
        """The disjoint slices, in the order in which they were given."""
        return to_slices(self.array)

    @property
    def heads(self) -> int:
        """Always 1: all heads share the mask."""
        return 1

    def head(self, index: int) -> SliceMask:
        """Returns the mask itself. The index must be 0."""
        if index != 0:
            raise MaskError(f"head {index} of a mask that all heads share; only head 0 is there")
        return self

    @cached_property
    def area(self) -> int:
        """Number of visible (query, key) pairs. The count is exact."""
        return int(area(self.array).sum())

    def dense(self) -> NDArray[np.bool_]:
        """The boolean matrix [seqlen_q, seqlen_k]. See `Mask.dense`."""
        self._check_dense()
        out = np.zeros((self.seqlen_q, self.seqlen_k), np.bool_)
        for q0, q1, k0, k1, lo, hi in self.array.tolist():
            diagonal = np.arange(k0, k1)[None, :] - np.arange(q0, q1)[:, None]
            out[q0:q1, k0:k1] |= (diagonal >= lo) & (diagonal <= hi)
        return out

    def cut(self, q_ranges: Iterable[Sequence[int]], k_ranges: Iterable[Sequence[int]]) -> SliceMask:
        """The mask between the kept queries and keys, re-indexed from 0, with neighbours merged. See `Mask.cut`."""
        q = cutting.check_ranges(q_ranges, self.seqlen_q, "query")
        k = cutting.check_ranges(k_ranges, self.seqlen_k, "key")
        return SliceMask(cutting.cut(self.array, q, k), int(np.diff(q).sum()), int(np.diff(k).sum()))

    # Conversions

    @cached_property
    def row_pieces(self) -> IntervalPieces:
        """The row intervals, as O(slices) affine pieces."""
        return interval_pieces(self.array, self.seqlen_q)

    @cached_property
    def column_pieces(self) -> IntervalPieces:
        """The column intervals, as O(slices) affine pieces."""
        return interval_pieces(transpose(self.array), self.seqlen_k)

    def row_intervals(self, n: int | None = None) -> Intervals:
        """Each query's keys: (starts, stops), int32 [n, seqlen_q]. See `Mask.row_intervals`."""
        return self._expand(self.row_pieces, n, "query", "keys")

    def column_intervals(self, n: int | None = None) -> Intervals:
        """Each key's queries: (starts, stops), int32 [n, seqlen_k]. See `Mask.column_intervals`."""
        return self._expand(self.column_pieces, n, "key", "queries")

    def _expand(self, pieces: IntervalPieces, n: int | None, one: str, others: str) -> Intervals:
        if n is not None and pieces.max_intervals > n:
            raise MaskError(
                f"a {one} of this {self.label} has {pieces.max_intervals} intervals of {others}, not {n} or fewer"
            )
        return pieces.expand(pieces.max_intervals if n is None else n)

    def blocks(self, block_q: int, block_k: int) -> Blocks:
        """Runs of visible blocks of [block_q, block_k] tokens. See `Mask.blocks`."""
        if block_q < 1 or block_k < 1:
            raise MaskError(f"blocks of {block_q} × {block_k} tokens; each side needs at least 1")
        return Blocks(block_q, block_k, self.row_pieces, self.column_pieces)

    @cached_property
    def window(self) -> Window | None:
        """The window that equals the mask, or None if the mask is no single band. A full mask has no bounds."""
        stack, index = self._in_stack
        return stack.window(index)

    @cached_property
    def _in_stack(self) -> tuple[MaskStack, int]:
        """The stack that answers about forms for this mask, and the mask's place in it."""
        from longca.masks.stack import MaskStack

        return MaskStack.of([self]), 0

    @cached_property
    def varlen(self) -> Varlen | None:
        """The documents that equal the mask, or None."""
        stack, index = self._in_stack
        return stack.documents(index)

    @cached_property
    def layers(self) -> list[Varlen]:
        """Varlen calls that together show the mask, as few as `longca.masks.layering` finds."""
        if self.varlen is not None:
            return [self.varlen]
        return layering.layers(self.array, self.seqlen_q, self.seqlen_k)

    def admits(self, form: Form) -> bool:
        """Whether the form can express the mask exactly."""
        stack, index = self._in_stack
        return bool(stack.admits(form)[index])

    def count(self, form: Form) -> int:
        """Number of intervals or layers that an admitted form takes. Forms without a count return 1."""
        stack, index = self._in_stack
        match form:
            case Form.ROW_INTERVALS:
                return int(stack.row_counts[index])
            case Form.COLUMN_INTERVALS:
                return int(stack.column_counts[index])
            case Form.LAYERS:
                return len(self.layers)
            case _:
                return 1

    @cached_property
    def digest(self) -> str:
        """16 hex digits that are the same for equal masks: a hash of the row intervals."""
        h = hashlib.blake2b(f"{self.heads} {self.seqlen_q} {self.seqlen_k}".encode(), digest_size=8)
        for ends in itertools.chain.from_iterable(self.row_pieces.slots()):
            h.update(ends.astype("<i4", copy=False).data)
        return h.hexdigest()

    def _shows_same(self, other: Mask) -> bool:
        if np.array_equal(self.array, other.head(0).array):
            return True
        return self.row_pieces.same(other.head(0).row_pieces)
