"""Work: the computation of one kernel call, as a few sums over the mask's tiles of 128 × 128 tokens.

The sums are the features of the cost model. They need neither torch nor a device. A kernel that packs documents tiles
each document from its own first token, so documents are counted on a grid where each one begins at a tile.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from longca.masks import BlockSparseMask, Form, Mask, SliceMask
from longca.masks.forms import Varlen, Window
from longca.masks.rectangles import rectangles
from longca.masks.slices import UNBOUNDED, tighten
from longca.masks.stack import MaskStack
from longca.plan_cache import PlanCache

__all__ = ["TILE", "Work", "merged_layers", "work_of", "works_of"]

#: Tokens along each side of a tile.
TILE = 128


@dataclass(frozen=True)
class Work:
    """The work of a call for one head, in tiles of 128 × 128 tokens. Several heads with own masks are averaged.

    Attributes:
        path: The form, and the distinctions that kernels make within it, such as `varlen/causal` or `block_sparse/64`.
        full: Fully visible tiles. In a block-sparse mask: the visible area, in tiles.
        partial: Partly visible tiles. In a block-sparse mask: the touched tiles beyond the visible area.
        rows: Non-empty rows of tiles.
        longest: Tiles of the longest row.
        longest_column: Tiles of the longest column.
        calls: Calls of the kernel: more than 1 for layers.
        grid: Launched tiles of queries, including the tiles of shorter documents that end at once. 0 without documents.
        tokens: All rows of tiles in the call, including empty ones.
        cells: Tiles of the whole matrix.
        merged: Rows of tiles of the layers whose results have to be merged, each layer with all rows.
    """

    path: str
    full: float
    partial: float
    rows: float
    longest: float
    longest_column: float
    calls: int
    grid: float
    tokens: float
    cells: float
    merged: float = 0.0

    @property
    def family(self) -> str:
        """Paths whose calls say something of one another: those of one family."""
        return self.path if self.path.startswith(("dense", "block_sparse")) else "slices"

    @property
    def has_blocks(self) -> bool:
        """Whether the kernel computes a block-sparse mask by its blocks."""
        return self.path.startswith("block_sparse")

    @property
    def tiles(self) -> float:
        """Tiles that are computed."""
        return self.full + self.partial

    @property
    def row_length(self) -> float:
        """Tiles of a row on average, over the rows that have any."""
        return self.tiles / max(self.rows, 1.0)

    def __add__(self, other: Work) -> Work:
        """The sum of two calls that follow one another. Both have the same path."""
        sums = (a + b for a, b in zip(astuple(self)[1:], astuple(other)[1:], strict=True))
        return Work(self.path, *sums)


def work_of(mask: Mask, form: Form) -> Work:
    """The work of a call that takes a mask in a form that it admits."""
    return works_of([(mask, form)])[0]


def works_of(calls: Sequence[tuple[Mask, Form]]) -> list[Work]:
    """The works of several calls, as of `work_of`. All masks of slices are tiled together."""
    new: dict[tuple[Hashable, bool], Sequence[SliceMask]] = {}
    for mask, form in calls:
        about: tuple[Hashable, bool] = (mask.key, form in _DOCUMENTS)
        if not (form in _UNTILED or mask.is_empty) and about not in new and _SUMS.find(*about) is None:
            new[about] = list(map(_apart, mask.head(0).layers)) if about[1] else [mask.head(0)]
    if new:
        sums = MaskStack.of([part for parts in new.values() for part in parts]).tile_sums(TILE)
        ends = np.cumsum([len(parts) for parts in new.values()])
        for made, rows in zip(new, np.split(sums, ends[:-1]), strict=True):
            _SUMS.get(*made, partial(np.asarray, rows))
    return [_WORKS.get(mask, form, partial(_work_of, mask, form)) for mask, form in calls]


#: The latest works, by mask and form.
_WORKS: PlanCache[Work] = PlanCache(2048)

#: The latest sums over tiles, by mask, and by whether its documents were moved apart: one row, or one for each layer.
_SUMS: PlanCache[NDArray[np.float64]] = PlanCache(2048)

#: Forms whose kernels tile each document from its own first token, and forms whose works are no sums over tiles.
_DOCUMENTS, _UNTILED = (Form.VARLEN, Form.LAYERS), (Form.DENSE, Form.BLOCK_SPARSE)


def _work_of(mask: Mask, form: Form) -> Work:
    if form == Form.DENSE or mask.is_empty:
        return _everything(mask)
    if form == Form.BLOCK_SPARSE:
        assert isinstance(mask, BlockSparseMask), "no other mask admits the form"
        return _of_blocks(mask)
    sums, single, tokens = _SUMS.find(mask, form in _DOCUMENTS), mask.head(0), _tiles(mask.seqlen_q)
    assert sums is not None, "they were just made"
    if form not in _DOCUMENTS:
        path = _path(form, single.window if form is Form.WINDOW else None)
        return _of_sums(path, sums[0], 0, tokens, _cells(mask))
    whole, *others = [_of_documents(form, *layer) for layer in zip(single.layers, sums, strict=True)]
    for layer in others:
        whole = whole + layer
    return replace(whole, tokens=tokens, cells=_cells(mask), merged=merged_layers(single) * tokens)


def _everything(mask: Mask) -> Work:
    """The work of a kernel that computes every cell, for any mask."""
    rows, columns = _tiles(mask.seqlen_q), _tiles(mask.seqlen_k)
    return Work(str(Form.DENSE), rows * columns, 0, rows, columns, rows, 1, 0, rows, rows * columns)


def _of_blocks(mask: BlockSparseMask) -> Work:
    size = mask.block_size
    area = mask.area / TILE**2 / mask.heads
    touched = area / mask.tile_efficiency()
    sees = mask.keys_by_block > 0
    # A row of blocks is as many rows of tiles as its queries need.
    heights = -(-np.diff(mask.q_bounds) // TILE)
    return Work(
        path=f"{Form.BLOCK_SPARSE}/{size or 'variable'}",
        full=area,
        partial=max(touched - area, 0.0),
        rows=float((sees * heights).sum()) / mask.heads,
        longest=float(mask.keys_by_block.max()) / TILE,
        longest_column=_tiles(mask.seqlen_q) * mask.density,
        calls=1,
        grid=0,
        tokens=_tiles(mask.seqlen_q),
        cells=_cells(mask),
    )


def _of_documents(form: Form, varlen: Varlen, sums: NDArray[np.float64]) -> Work:
    """One varlen call, without the tokens and cells of the whole mask."""
    queries, keys = (np.diff(bounds) for bounds in (varlen.cu_seqlens_q, varlen.cu_seqlens_k))
    longest = _tiles(max(queries.max(initial=0), keys.max(initial=0)))
    path = str(form) if form is Form.LAYERS else _path(form, varlen.window)
    return _of_sums(path, sums, len(queries) * longest)


def _of_sums(path: str, sums: NDArray[np.float64], grid: float, tokens: float = 0.0, cells: float = 0.0) -> Work:
    full, partial, rows, longest, longest_column = sums.tolist()
    return Work(path, full, partial, rows, longest, longest_column, 1, grid, tokens, cells)


def _apart(varlen: Varlen) -> SliceMask:
    """The documents of a call, moved apart, so that each begins at a tile."""
    queries, keys = (np.diff(bounds).astype(np.int64) for bounds in (varlen.cu_seqlens_q, varlen.cu_seqlens_k))
    window, seen = varlen.window, (queries > 0) & (keys > 0)
    queries, keys = queries[seen], keys[seen]
    q_tiles, k_tiles = -(-queries // TILE) * TILE, -(-keys // TILE) * TILE
    q0, k0 = np.cumsum(q_tiles) - q_tiles, np.cumsum(k_tiles) - k_tiles
    corner = (k0 + keys) - (q0 + queries)
    lo = np.full_like(corner, -UNBOUNDED) if window.left is None else corner - window.left
    hi = np.full_like(corner, UNBOUNDED) if window.right is None else corner + window.right
    slices = np.stack([q0, q0 + queries, k0, k0 + keys, lo, hi], axis=1)
    return SliceMask(tighten(slices), int(q_tiles.sum()), int(k_tiles.sum()))


def _path(form: Form, window: Window | None) -> str:
    """Kernels have code of their own for masks without bounds, causal ones, and windows of one side and of two."""
    if window is None or form is Form.LAYERS:
        return str(form)
    kind = {(False, False): "full", (False, True): "causal", (True, False): "right", (True, True): "window"}[
        window.left is not None, window.right is not None
    ]
    if kind == "window" and window.right == 0:
        kind = "left"
    return f"{form}/{kind}"


def _tiles(tokens: int | np.int64) -> float:
    return float(-(-int(tokens) // TILE))


def _cells(mask: Mask) -> float:
    return _tiles(mask.seqlen_q) * _tiles(mask.seqlen_k)


#: Copies of a key at most, on average, for copies to be worth it.
_COPIES = 2

_FULL, _CAUSAL = Window(None, None), Window(None, 0)


def merged_layers(mask: SliceMask) -> int:
    """The number of layers of a mask of one head whose results have to be merged."""
    layers = mask.layers
    if len(layers) == 1 or rectangles(mask, len(layers)):
        return 0
    bounds = np.unique(np.concatenate([layer.cu_seqlens_q for layer in layers]).astype(np.int64))
    keys = np.stack([_keys(layer, bounds) for layer in layers])
    crowded = (keys > 0).sum(axis=0) > 1
    merged = ((keys > 0) & crowded).any(axis=1)
    can_join = {layer.window for layer in layers} <= {_FULL, _CAUSAL}
    if can_join and keys.sum() <= _COPIES * int(layers[0].cu_seqlens_k[-1]):
        return 0
    return int(merged.sum())


def _keys(layer: Varlen, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """The keys that a layer shows the queries between bounds, all together: [bounds - 1]."""
    document = np.searchsorted(layer.cu_seqlens_q, bounds[:-1], side="right") - 1
    bounds_k = layer.cu_seqlens_k.astype(np.int64)
    keys: NDArray[np.int64] = bounds_k[document + 1] - bounds_k[document]
    if layer.window == _CAUSAL:  # the last of the queries sees most
        keys = np.maximum(keys - (layer.cu_seqlens_q[document + 1] - bounds[1:]), 0)
    return keys
