"""The patterns of LongCA-bench (arXiv 2510.17896): twelve static ones, and two dynamic ones for each head.

A static mask is a few slices made from its factors. Indices start at 0, and document d spans [s, e). A dynamic mask is
random and block-sparse, and the "sparsity ratio" of the paper is its kept share. Importing this module registers the
patterns.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longca.limits import check_pieces
from longca.masks.bitmaps import Bits, check_bitmap
from longca.masks.block_sparse import BlockSparseMask
from longca.masks.bounds import kept_count, uniform_bounds
from longca.masks.forms import Form
from longca.masks.patterns import Pattern, register
from longca.masks.slice_mask import SliceMask
from longca.masks.slices import UNBOUNDED as _ANY
from longca.masks.slices import tighten

__all__: list[str] = []


def _mask(q: int, k: int, *slices: tuple[Any, ...]) -> SliceMask:
    """Makes a mask from loose slices (q0, q1, k0, k1, lo, hi). Bounds may be arrays, with one slice for each entry."""
    rows = [np.stack(np.broadcast_arrays(*np.atleast_1d(*s)), axis=1) for s in slices]
    return SliceMask(tighten(np.concatenate(rows).astype(np.int64)), q, k)


def _spans(documents: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    lengths = np.array(documents, np.int64)
    stops = np.cumsum(lengths)
    return stops - lengths, stops


def _full(q: int, k: int) -> SliceMask:
    return _mask(q, k, (0, q, 0, k, -_ANY, _ANY))


def _causal(q: int, k: int) -> SliceMask:
    return _mask(q, k, (0, q, 0, k, -_ANY, k - q))


def _full_sliding_window(q: int, k: int, window: int) -> SliceMask:
    return _mask(q, k, (0, q, 0, k, k - q - window, k - q + window))


def _causal_sliding_window(q: int, k: int, window: int) -> SliceMask:
    return _mask(q, k, (0, q, 0, k, k - q - window, k - q))


def _full_document(q: int, k: int, documents: tuple[int, ...]) -> SliceMask:
    start, stop = _spans(documents)
    return _mask(q, k, (start, stop, start, stop, -_ANY, _ANY))


def _causal_document(q: int, k: int, documents: tuple[int, ...]) -> SliceMask:
    start, stop = _spans(documents)
    return _mask(q, k, (start, stop, start, stop, -_ANY, 0))


def _block_causal_document(q: int, k: int, documents: tuple[int, ...], block: int) -> SliceMask:
    start, stop = _spans(documents)
    blocks = -(-(stop - start) // block)
    check_pieces(int(blocks.sum()), "blocks", "Take larger blocks")
    document = np.repeat(np.arange(len(start)), blocks)
    index = np.arange(len(document)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    first = start[document] + index * block
    last = np.minimum(first + block, stop[document])
    return _mask(q, k, (first, last, start[document], last, -_ANY, _ANY))


def _prefix_lm_causal(q: int, k: int, prefix: int) -> SliceMask:
    return _mask(q, k, (0, prefix, 0, prefix, -_ANY, _ANY), (prefix, q, 0, q, -_ANY, 0))


def _prefix_lm_document(q: int, k: int, documents: tuple[int, ...], prefix: int) -> SliceMask:
    start, stop = _spans(documents)
    middle = np.minimum(start + prefix, stop)
    return _mask(q, k, (start, middle, start, middle, -_ANY, _ANY), (middle, stop, start, stop, -_ANY, 0))


def _shared_question(q: int, k: int, documents: tuple[int, ...]) -> SliceMask:
    start, stop = _spans(documents)
    # The first answer continues the question, so the two are one causal document.
    joint = stop[min(1, len(stop) - 1)]
    return _mask(
        q,
        k,
        (0, joint, 0, joint, -_ANY, 0),
        (start[2:], stop[2:], start[2:], stop[2:], -_ANY, 0),
        (joint, q, 0, stop[0], -_ANY, _ANY),
    )


def _global_sliding_window(q: int, k: int, window: int, global_tokens: int) -> SliceMask:
    g = global_tokens
    return _mask(q, k, (0, g, 0, q, -_ANY, _ANY), (g, q, 0, g, -_ANY, _ANY), (g, q, g, q, -window, window))


def _causal_blockwise(q: int, k: int, documents: tuple[int, ...]) -> SliceMask:
    start, stop = _spans(documents)
    start_k = np.where(stop == q, 0, start)
    return _mask(q, k, (start, stop, start_k, stop, -_ANY, 0))


def _uniform_block_sparse(q: int, k: int, block: int, kept: float, heads: int, seed: int) -> BlockSparseMask:
    check_bitmap(heads, -(-q // block))
    return _top_blocks(uniform_bounds(q, block), kept, heads, seed)


def _variable_block_sparse(
    q: int, k: int, boundaries: tuple[int, ...], kept: float, heads: int, seed: int
) -> BlockSparseMask:
    check_bitmap(heads, len(boundaries) - 1)
    return _top_blocks(np.array(boundaries), kept, heads, seed)


def _top_blocks(bounds: NDArray[np.int64], kept: float, heads: int, seed: int) -> BlockSparseMask:
    """Keeps the ⌊kept·n⌋ (at least one) of n key blocks with the highest random scores, per head and query block."""
    blocks = len(bounds) - 1
    count = kept_count(kept, blocks)
    return BlockSparseMask.drawn(partial(_top_bits, blocks, count, heads, seed), heads, count, bounds)


def _top_bits(n: int, count: int, heads: int, seed: int) -> Bits:
    """The packed bits of the `count` of n key blocks with the highest scores: [heads, n, bytes]."""
    rng = np.random.default_rng(seed)
    bits = np.empty((heads * n, -(-n // 8)), np.uint8)
    rows = max(1, 2**22 // n)  # 32 MiB of scores in one step
    for first in range(0, heads * n, rows):
        scores = rng.random((min(rows, heads * n - first), n))
        best = np.argpartition(scores, n - count, axis=1)[:, n - count :]
        kept_blocks = np.zeros(scores.shape, np.bool_)
        np.put_along_axis(kept_blocks, best, True, axis=1)
        bits[first : first + rows] = np.packbits(kept_blocks, axis=1)
    return bits.reshape(heads, n, -1)


def _band_forms() -> dict[Form, int | None]:
    return {Form.WINDOW: 1, **_document_forms()}


def _document_forms() -> dict[Form, int | None]:
    return {Form.VARLEN: 1, **_interval_forms(rows=1, columns=1, layers=1)}


def _interval_forms(*, rows: int, columns: int, layers: int | None) -> dict[Form, int | None]:
    return {Form.ROW_INTERVALS: rows, Form.COLUMN_INTERVALS: columns, Form.LAYERS: layers, Form.DENSE: 1}


def _block_forms() -> dict[Form, int | None]:
    return {Form.BLOCK_SPARSE: 1, Form.DENSE: 1}


for _pattern in (
    Pattern("full", "Full", "always", (), _full, {Form.FULL: 1, **_band_forms()}, rectangular=True),
    Pattern(
        "causal",
        "Causal",
        "j − i ≤ Sk − Sq",
        (),
        _causal,
        {Form.CAUSAL: 1, **_band_forms()},
        rectangular=True,
    ),
    Pattern(
        "full_sliding_window",
        "Full sliding window",
        "|j − i − (Sk − Sq)| ≤ w",
        ("window",),
        _full_sliding_window,
        _band_forms(),
        rectangular=True,
    ),
    Pattern(
        "causal_sliding_window",
        "Causal sliding window",
        "−w ≤ j − i − (Sk − Sq) ≤ 0",
        ("window",),
        _causal_sliding_window,
        _band_forms(),
        rectangular=True,
    ),
    Pattern("full_document", "Full document", "same document", ("documents",), _full_document, _document_forms()),
    Pattern(
        "causal_document",
        "Causal document",
        "same document and j ≤ i",
        ("documents",),
        _causal_document,
        _document_forms(),
    ),
    Pattern(
        "block_causal_document",
        "Block causal document",
        "same document and ⌊(j − s)/b⌋ ≤ ⌊(i − s)/b⌋",
        ("documents", "block"),
        _block_causal_document,
        _interval_forms(rows=1, columns=1, layers=None),
    ),
    Pattern(
        "prefix_lm_causal",
        "Prefix LM causal",
        "j < p and i < p, or j ≤ i",
        ("prefix",),
        _prefix_lm_causal,
        _interval_forms(rows=1, columns=1, layers=2),
    ),
    Pattern(
        "prefix_lm_document",
        "Prefix LM document",
        "same document, and both within p of its start, or j ≤ i",
        ("documents", "prefix"),
        _prefix_lm_document,
        _interval_forms(rows=1, columns=1, layers=2),
    ),
    Pattern(
        "shared_question",
        "Shared question",
        "j ≤ i, and j in i's document or in document 0",
        ("documents",),
        _shared_question,
        _interval_forms(rows=2, columns=1, layers=2),
    ),
    Pattern(
        "global_sliding_window",
        "Global sliding window",
        "i < g, or j < g, or |i − j| ≤ w",
        ("window", "global_tokens"),
        _global_sliding_window,
        _interval_forms(rows=2, columns=2, layers=3),
    ),
    Pattern(
        "causal_blockwise",
        "Causal blockwise",
        "j ≤ i, and same document or i in the last",
        ("documents",),
        _causal_blockwise,
        _interval_forms(rows=1, columns=2, layers=2),
    ),
    Pattern(
        "uniform_block_sparse",
        "Uniform block sparse",
        "j's block is kept for i's block, per head",
        ("block", "kept", "heads", "seed"),
        _uniform_block_sparse,
        _block_forms(),
        defaults={"heads": 1, "seed": 0},
        per_head=True,
        has_uniform_blocks=True,
    ),
    Pattern(
        "variable_block_sparse",
        "Variable block sparse",
        "the same with blocks of unequal sizes",
        ("boundaries", "kept", "heads", "seed"),
        _variable_block_sparse,
        _block_forms(),
        defaults={"heads": 1, "seed": 0},
        per_head=True,
    ),
):
    register(_pattern)
