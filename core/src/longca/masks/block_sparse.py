"""BlockSparseMask: per head, a bitmap of which key blocks each query block sees.

The bitmap is packed to bits: 64 heads at 128 K tokens and blocks of 64 take 34 MB. The bitmap of a random mask is drawn
when it is first read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from longca.errors import MaskError
from longca.limits import MAX_DENSE_CELLS
from longca.masks.bitmaps import Bits, block_edges, check_bits, most_runs, seen_tokens, touched_tiles, unpacked
from longca.masks.blocks import Blocks
from longca.masks.bounds import check_bounds, cut_bounds, tile_spans
from longca.masks.cutting import check_ranges
from longca.masks.forms import Form
from longca.masks.mask import Intervals, Mask
from longca.masks.slice_mask import SliceMask
from longca.masks.slices import corner_band, merge

__all__ = ["BlockSparseMask"]

_MANY = 16  # with more intervals than this in a row, layers are not counted one by one


class BlockSparseMask(Mask):
    """A per-head block-sparse mask, with blocks of one size or of any sizes.

    Args:
        kept: Whether each query block sees each key block: bool [heads, query blocks, key blocks]. A mask that all
            heads share has no first dimension.
        q_bounds: Bounds of the query blocks, strictly ascending from 0 to seqlen_q: [query blocks + 1].
        k_bounds: Bounds of the key blocks, strictly ascending from 0 to seqlen_k: [key blocks + 1].

    Raises:
        MaskError: The bounds do not ascend, or the shape of the bitmap does not match them.
    """

    _heads: int
    _draw: Callable[[], Bits]

    def __init__(
        self,
        kept: NDArray[np.bool_],
        q_bounds: ArrayLike,
        k_bounds: ArrayLike,
    ) -> None:
        kept = np.asarray(kept, np.bool_)
        kept = kept[None] if kept.ndim == 2 else kept
        self._take_bounds(q_bounds, k_bounds)
        expected = (len(self.q_bounds) - 1, len(self.k_bounds) - 1)
        if kept.ndim != 3 or kept.shape[1:] != expected or not len(kept):
            raise MaskError(f"kept has shape {kept.shape}; these bounds need [heads, {expected[0]}, {expected[1]}]")
        self._take_bits(np.packbits(kept, axis=-1))

    @classmethod
    def from_bits(cls, bits: Bits, q_bounds: ArrayLike, k_bounds: ArrayLike) -> BlockSparseMask:
        """Makes a mask from a packed bitmap, which is copied: `numpy.packbits` of `kept` along the key blocks.

        Raises:
            MaskError: The bounds do not ascend, the bits are not uint8 [heads, query blocks, bytes], or a bit beyond
                the last key block is set.
        """
        mask = cls.__new__(cls)
        mask._take_bounds(q_bounds, k_bounds)
        mask._take_bits(check_bits(bits, len(mask.q_bounds) - 1, len(mask.k_bounds) - 1))
        return mask

    @classmethod
    def drawn(cls, draw: Callable[[], Bits], heads: int, kept: int, bounds: ArrayLike) -> BlockSparseMask:
        """Makes a mask whose bitmap `draw` makes when it is first read: uint8 [heads, blocks, bytes], always the same.

        Each query block sees `kept` ≥ 1 key blocks. The bounds are those of query blocks and of key blocks.
        """
        mask = cls.__new__(cls)
        mask._take_bounds(bounds, bounds)
        mask._heads, mask._draw, mask._row_blocks = heads, draw, kept
        return mask

    def _take_bounds(self, q_bounds: ArrayLike, k_bounds: ArrayLike) -> None:
        self.q_bounds, self.k_bounds = check_bounds(q_bounds, "query"), check_bounds(k_bounds, "key")
        super().__init__(int(self.q_bounds[-1]), int(self.k_bounds[-1]))
        self._row_blocks: int | None = None  # key blocks that each query block sees, if this is known without the bits
        self._tiles: dict[tuple[int, int], int] = {}

    def _take_bits(self, bits: Bits) -> None:
        self.bits, self._heads = bits, len(bits)
        self.bits.flags.writeable = False

    @cached_property
    def bits(self) -> Bits:
        """The packed bitmap: uint8 [heads, query blocks, bytes]."""
        bits = self._draw()
        bits.flags.writeable = False
        return bits

    @property
    def heads(self) -> int:
        """Heads with masks of their own."""
        return self._heads

    @property
    def nbytes(self) -> int:
        """Bytes of the bitmap and the bounds."""
        return self.bitmap_bytes + self.q_bounds.nbytes + self.k_bounds.nbytes

    @property
    def bitmap_bytes(self) -> int:
        """Bytes of the bitmap, which is not drawn for this."""
        return self.heads * (len(self.q_bounds) - 1) * -(-(len(self.k_bounds) - 1) // 8)

    def kept(self, index: int) -> NDArray[np.bool_]:
        """Which key blocks each query block of a head sees: [query blocks, key blocks]."""
        return unpacked(self._bits_of(index), len(self.k_bounds) - 1)

    def _bits_of(self, index: int) -> Bits:
        if not 0 <= index < self.heads:
            raise MaskError(f"head {index} of a mask of {self.heads} heads; take one from 0 to {self.heads - 1}")
        return self.bits[index]

    @cached_property
    def block_size(self) -> int | None:
        """Tokens of a block if all blocks have one size (the last may be shorter), else None."""
        sizes = np.concatenate([np.diff(self.q_bounds)[:-1], np.diff(self.k_bounds)[:-1]])
        last = max(np.diff(self.q_bounds)[-1:].max(initial=0), np.diff(self.k_bounds)[-1:].max(initial=0))
        if not len(sizes):
            return int(last)
        return int(sizes[0]) if (sizes == sizes[0]).all() and last <= sizes[0] else None

    @cached_property
    def keys_by_block(self) -> NDArray[np.int64]:
        """Keys that the queries of each block see: int64 [heads, query blocks]."""
        sizes = np.diff(self.k_bounds)
        if self._row_blocks is not None and (sizes == sizes[0]).all():
            return np.full((self.heads, len(self.q_bounds) - 1), self._row_blocks * sizes[0])
        return seen_tokens(self.bits, sizes)

    @cached_property
    def area_by_head(self) -> NDArray[np.int64]:
        """Visible pairs of each head: int64 [heads]."""
        return self.keys_by_block @ np.diff(self.q_bounds)

    @property
    def area(self) -> int:
        """Number of visible (query, key) pairs, summed over heads. The count is exact."""
        return sum(self.area_by_head.tolist())

    @property
    def is_empty(self) -> bool:
        """Whether no query sees any key."""
        return self._row_blocks is None and self.area == 0

    def visible_keys(self) -> NDArray[np.int64]:
        """Number of keys that each query sees. See `Mask.visible_keys`."""
        return self.keys_by_block.repeat(np.diff(self.q_bounds), axis=1)

    def dense(self) -> NDArray[np.bool_]:
        """The boolean matrix. See `Mask.dense`."""
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
        """The mask between the kept queries and keys of the kept heads, re-indexed from 0. See `Mask.cut`.

        Whole blocks keep their size: a cut to the short last block alone has the block size of the mask. Heads are
        indices or a slice, and None keeps all of them.
        """
        picked = range(self.heads)[heads] if isinstance(heads, slice) else range(self.heads) if heads is None else heads
        if not len(picked):
            raise MaskError("a cut keeps no head; keep at least one")
        queries, keys = check_ranges(q_ranges, self.seqlen_q, "query"), check_ranges(k_ranges, self.seqlen_k, "key")
        (q_bounds, q_blocks), (k_bounds, k_blocks) = cut_bounds(self.q_bounds, queries), cut_bounds(self.k_bounds, keys)
        rows = (unpacked(self._bits_of(int(h))[q_blocks], len(self.k_bounds) - 1) for h in picked)
        made = BlockSparseMask.from_bits(
            np.stack([np.packbits(of_head[:, k_blocks], axis=-1) for of_head in rows]), q_bounds, k_bounds
        )
        if self.block_size is not None and np.isin(queries, self.q_bounds).all() and np.isin(keys, self.k_bounds).all():
            made.block_size = self.block_size
        return made

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
        """See `Mask.row_intervals`."""
        return self._only_head().row_intervals(n)

    def column_intervals(self, n: int | None = None) -> Intervals:
        """See `Mask.column_intervals`."""
        return self._only_head().column_intervals(n)

    def blocks(self, block_q: int, block_k: int) -> Blocks:
        """See `Mask.blocks`."""
        return self._only_head().blocks(block_q, block_k)

    def tile_efficiency(self, block_q: int = 128, block_k: int = 128) -> float:
        """Visible pairs over the area of the touched tiles, read off the bitmap once. See `Mask.tile_efficiency`."""
        if (block_q, block_k) not in self._tiles:
            spans = tile_spans(self.q_bounds, block_q), tile_spans(self.k_bounds, block_k)
            self._tiles[block_q, block_k] = sum(touched_tiles(bits, *spans) for bits in self.bits)
        tiles = self._tiles[block_q, block_k]
        return self.area / (tiles * block_q * block_k) if tiles else 0.0

    def admits(self, form: Form) -> bool:
        """Whether the mask can be written in a form exactly."""
        match form:
            case Form.BLOCK_SPARSE:
                return True
            case Form.DENSE:
                return self.heads * self.seqlen_q * self.seqlen_k <= MAX_DENSE_CELLS
            case Form.FULL if self._row_blocks is not None:
                return self._row_blocks == len(self.k_bounds) - 1
            case Form.FULL:
                return self.area == self.heads * self.seqlen_q * self.seqlen_k
            case Form.LAYERS | Form.ROW_INTERVALS | Form.COLUMN_INTERVALS:
                return self.heads == 1
            case Form.CAUSAL | Form.WINDOW | Form.VARLEN:
                # A mask with several runs in a row is no band. This check avoids making slices of a million runs.
                return self.heads == 1 and self._most_runs[0] <= 1 and self._first_head.admits(form)

    def count(self, form: Form) -> int:
        """Number of intervals or layers that an admitted form takes. See `Mask.count`.

        If some row has more than 16 intervals, the count of layers is that of intervals, which is a lower bound.
        """
        if self.heads > 1:
            return 1
        match form:
            case Form.ROW_INTERVALS:
                return self._most_runs[0]
            case Form.COLUMN_INTERVALS:
                return self._most_runs[1]
            case Form.LAYERS if self._most_runs[0] > _MANY:
                return self._most_runs[0]
            case _:
                return self._first_head.count(form)

    @cached_property
    def _most_runs(self) -> tuple[int, int]:
        """Runs of kept blocks in the fullest row and in the fullest column of head 0."""
        return most_runs(self.kept(0))

    @property
    def digest(self) -> str:
        """16 hex digits that are the same for equal masks. If heads differ, they are the fingerprint."""
        return self._first_head.digest if self.heads == 1 else self.fingerprint

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that are the same for equal block-sparse masks. They are a hash of the merged bitmap."""
        q_keep, k_keep = block_edges(self.bits, len(self.k_bounds) - 1)
        h = hashlib.blake2b(f"{self.heads} {self.seqlen_q} {self.seqlen_k}".encode(), digest_size=8)
        for bounds, keep in ((self.q_bounds, q_keep), (self.k_bounds, k_keep)):
            h.update(bounds[:-1][keep].astype("<i8").tobytes())
        whole = q_keep.all() and k_keep.all() and len(k_keep) % 8 == 0
        for head in range(self.heads):
            h.update(self.bits[head] if whole else np.packbits(self.kept(head)[np.ix_(q_keep, k_keep)]).tobytes())
        return h.hexdigest()

    def _shows_same(self, other: Mask) -> bool:
        if not isinstance(other, BlockSparseMask):
            return all(self.head(h)._shows_same(other.head(h)) for h in range(self.heads))
        if np.array_equal(self.q_bounds, other.q_bounds) and np.array_equal(self.k_bounds, other.k_bounds):
            return np.array_equal(self.bits, other.bits)
        return self.fingerprint == other.fingerprint
