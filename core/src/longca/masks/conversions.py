"""Masks from what people hold: bounds of packed documents, positions of tokens, and boolean matrices.

Arguments may be lists, NumPy arrays or tensors. A tensor on a GPU is copied to the host, which waits for it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longca.errors import MaskError
from longca.limits import check_pieces
from longca.masks.mask import check_seqlen
from longca.masks.patterns import build
from longca.masks.slice_mask import SliceMask
from longca.masks.slices import UNBOUNDED, SliceArray, merge, tighten

__all__ = ["as_array", "from_cu_seqlens", "from_dense", "from_position_ids", "from_rows", "window_of"]

_Ints = NDArray[np.int64]

#: Rows of a matrix that are read together have at most this many cells.
_CELLS = 2**26


def from_cu_seqlens(
    cu_seqlens: Any,
    cu_seqlens_k: Any = None,
    *,
    causal: bool,
    window_size: tuple[int, int] = (-1, -1),
    seqlen: int | None = None,
) -> SliceMask:
    """The mask of packed documents, by the arguments of flash-attn's varlen functions.

    Args:
        cu_seqlens: Bounds of the documents' queries, from 0: integers [documents + 1].
        cu_seqlens_k: Bounds of the documents' keys, if they differ: integers [documents + 1].
        causal: Whether a query sees no later key. A document's last query is aligned with its last key.
        window_size: Tokens that a query sees to the left and to the right of itself. −1 means no bound.
        seqlen: Tokens of the sequence if more follow the last document. These see nothing, and nobody sees them.

    Raises:
        MaskError: Bounds that do not start at 0 or descend, different numbers of documents, or a wrong length.
    """
    bounds = _bounds(cu_seqlens, "cu_seqlens")
    keys = bounds if cu_seqlens_k is None else _bounds(cu_seqlens_k, "cu_seqlens_k")
    if len(bounds) != len(keys):
        raise MaskError(
            f"cu_seqlens has {len(bounds) - 1} documents and cu_seqlens_k {len(keys) - 1}; give both the same number"
        )
    left, right = window_of(window_size)
    if causal:
        right = 0
    if seqlen is not None and (cu_seqlens_k is not None or check_seqlen(seqlen) < bounds[-1]):
        raise MaskError(
            f"seqlen is {seqlen}, and the documents end at {bounds[-1]}; give at least that, and no cu_seqlens_k"
        )
    if np.array_equal(bounds, keys) and seqlen in (None, bounds[-1]) and left == UNBOUNDED and right in (0, UNBOUNDED):
        documents = np.diff(bounds)
        pattern = "full_document" if right else "causal_document"
        return build(pattern, int(bounds[-1]), documents=documents[documents > 0]).head(0)
    q0, q1, k0, k1 = bounds[:-1], bounds[1:], keys[:-1], keys[1:]
    slices = np.stack([q0, q1, k0, k1, k1 - q1 - left, k1 - q1 + right], axis=1)
    end = seqlen or int(keys[-1])
    return SliceMask(tighten(slices), seqlen or int(bounds[-1]), end)


def from_position_ids(position_ids: Any, *, causal: bool, window_size: tuple[int, int] = (-1, -1)) -> SliceMask:
    """The mask of packed documents, by the position of each token in its document.

    A document begins wherever a position does not follow the one before it. The collators of Hugging Face's
    transformers give such positions.

    Args:
        position_ids: Integers [tokens], or [rows, tokens] for a batch whose rows are packed one after another.
        causal: As in `from_cu_seqlens`.
        window_size: As in `from_cu_seqlens`.

    Raises:
        MaskError: No tokens, or something other than one or two dims of integers.
    """
    positions = as_array(position_ids)
    if positions.ndim not in (1, 2) or not positions.size or not np.issubdtype(positions.dtype, np.integer):
        raise MaskError(
            f"position_ids is an array {list(positions.shape)} of {positions.dtype}; "
            "give integers [tokens] or [rows, tokens]"
        )
    rows = positions.reshape(-1, positions.shape[-1]).astype(np.int64)
    begins = np.ones(rows.shape, np.bool_)
    begins[:, 1:] = np.diff(rows, axis=1) != 1
    bounds = np.r_[np.flatnonzero(begins), rows.size]
    return from_cu_seqlens(bounds, causal=causal, window_size=window_size)


def from_dense(matrix: Any, *, most: int = 2**14) -> SliceMask:
    """The mask that a matrix shows, as slices. It is exact.

    Args:
        matrix: Booleans [queries, keys], True where a query sees a key. Or floats that are added to the scores, each 0
            or at most −65504, the least float16. Leading dims of size 1 are allowed.
        most: The most slices to make. A matrix without structure has many, and no kernel would be fast on it.

    Raises:
        MaskError: Another shape, biases other than 0 and −∞, or more slices than `most`.
    """
    array = as_array(matrix)
    while array.ndim > 2 and len(array) == 1:
        array = array[0]
    if array.ndim != 2:
        raise MaskError(f"the matrix is {list(array.shape)}; give [queries, keys], for one head at a time")
    if np.issubdtype(array.dtype, np.floating):
        array = _unbiased(array)
    if array.dtype != np.bool_:
        raise MaskError(f"the matrix is of {array.dtype}; give booleans, True where a query sees a key")
    step = max(1, _CELLS // max(1, array.shape[1]))
    parts = (array[top : top + step] for top in range(0, len(array), step))
    return from_rows(parts, array.shape[0], array.shape[1], most)


def from_rows(parts: Iterable[NDArray[np.bool_]], seqlen_q: int, seqlen_k: int, most: int) -> SliceMask:
    """The mask of a boolean matrix that comes in parts of some rows each: [rows, seqlen_k].

    Raises:
        MaskError: The mask takes more slices than `most`.
    """
    check_seqlen(seqlen_q, "seqlen_q", least=0)
    found, top = [np.empty((0, 6), np.int64)], 0
    for part in parts:
        found.append(_slices_of_rows(part, top))
        top += len(part)
        if sum(map(len, found)) > most:
            found = [merge(np.concatenate(found))]
            _check_few(found[0], most)
    slices = merge(np.concatenate(found))
    _check_few(slices, most)
    return SliceMask(slices, seqlen_q, seqlen_k)


def _slices_of_rows(matrix: NDArray[np.bool_], top: int) -> SliceArray:
    """The tight slices of some rows, of which the first has the index `top`. Neighbours are not all merged.

    The n-th intervals of consecutive rows form one slice while both ends move by 0 or 1 key a row, always the same.
    """
    edges = np.diff(np.pad(matrix, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    row, start = np.nonzero(edges == 1)
    stop = np.nonzero(edges == -1)[1]
    counts = np.bincount(row, minlength=len(matrix))
    slot = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    order = np.lexsort((row, slot))
    row, start, stop, slot = row[order], start[order], stop[order], slot[order]
    step = np.stack([np.diff(start), np.diff(stop)], axis=1)
    follows = (np.diff(row) == 1) & (np.diff(slot) == 0) & ((step == 0) | (step == 1)).all(1)
    follows &= counts[row[1:]] == counts[row[:-1]]
    goes_on = follows.copy()
    goes_on[1:] &= ~follows[:-1] | (step[1:] == step[:-1]).all(1)
    first = np.flatnonzero(np.r_[True, ~goes_on][: len(row)])
    last = np.r_[first[1:], len(row)][: len(first)] - 1
    moves = np.zeros((len(first), 2), np.int64)
    tall = last > first
    moves[tall] = step[first[tall]]
    q0, q1 = row[first] + top, row[last] + top + 1
    lo = np.where(moves[:, 0] == 1, start[first] - q0, -UNBOUNDED)
    hi = np.where(moves[:, 1] == 1, stop[first] - 1 - q0, UNBOUNDED)
    return tighten(np.stack([q0, q1, start[first], stop[last], lo, hi], axis=1))


def _check_few(slices: SliceArray, most: int) -> None:
    if len(slices) > most:
        raise MaskError(
            f"the matrix has more than {most} slices, which is more than any structured mask; if it is one of blocks, "
            "give them to masks.BlockSparseMask"
        )


def _unbiased(scores: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    shown = scores == 0
    if not (shown | (scores <= -65504)).all():
        raise MaskError("the matrix adds biases other than 0 and −∞ to scores, and a mask has none; remove them")
    return shown


def _bounds(values: Any, name: str) -> _Ints:
    bounds = as_array(values)
    if bounds.ndim != 1 or len(bounds) < 2 or not np.issubdtype(bounds.dtype, np.integer):
        raise MaskError(f"{name} is an array {list(bounds.shape)} of {bounds.dtype}; give integers [documents + 1]")
    check_pieces(len(bounds) - 1, "documents", "Take fewer and longer documents")
    bounds = bounds.astype(np.int64)
    if bounds[0] != 0:
        raise MaskError(f"{name} starts at {bounds[0]}; the first document begins at 0")
    if len(down := np.flatnonzero(np.diff(bounds) < 0)):
        raise MaskError(f"{name} descends from {bounds[down[0]]} to {bounds[down[0] + 1]}; give ascending bounds")
    check_seqlen(int(bounds[-1]), f"the end of {name}")
    return bounds


def window_of(window_size: Any) -> tuple[int, int]:
    """Tokens to the left and right that a window (−1 for no bound, or from 0) shows, `UNBOUNDED` for −1."""
    try:
        left, right = (operator.index(side) for side in window_size)
    except (TypeError, ValueError):
        raise MaskError(f"window_size is {window_size!r}; give integers (left, right), with −1 for no bound") from None
    if min(left, right) < -1:
        raise MaskError(f"window_size is {window_size!r}; give tokens from 0, or −1 for no bound")
    return (left if left >= 0 else UNBOUNDED), (right if right >= 0 else UNBOUNDED)


def as_array(values: Any) -> NDArray[Any]:
    """Values as an array, also of a tensor on any device."""
    if hasattr(values, "detach"):
        if values.is_meta or str(values.layout) != "torch.strided":
            kind = "on the meta device" if values.is_meta else f"of the layout {values.layout}"
            raise MaskError(f"the tensor is {kind}; give a dense tensor with numbers, such as tensor.to_dense()")
        values = values.detach().cpu()
        if values.is_floating_point():
            values = values.float()  # NumPy has no bfloat16
    try:
        return np.asarray(values)
    except ValueError:
        raise MaskError("the rows of this array differ in length; give one of equal rows") from None
