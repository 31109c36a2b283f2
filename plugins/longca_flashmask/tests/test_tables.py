"""The tables against the dense mask: every tile that shows anything is listed once, with its kind."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from longca import masks
from longca.masks import Slice, SliceMask
from longca_flashmask.tables import MOST_INTERVALS, tile_arrays, token_intervals

CPU = torch.device("cpu")
DOCUMENTS = [70, 1, 128, 58]
MASKS = {
    "full": masks.build("full", seqlen=257),
    "full_unequal": masks.build("full", seqlen=100, seqlen_k=290),
    "causal": masks.build("causal", seqlen=256),
    "full_document": masks.build("full_document", seqlen=257, documents=DOCUMENTS),
    "shared_question": masks.build("shared_question", seqlen=257, documents=DOCUMENTS),
    "global_sliding_window": masks.build("global_sliding_window", seqlen=257, window=20, global_tokens=30),
    "comb": SliceMask([Slice(0, 130, 40 * k, 40 * k + 20) for k in range(5)], 130, 200),
    "empty": SliceMask([], 130, 140),
    "no_keys": SliceMask([], 130, 0),
    "no_queries": SliceMask([], 0, 130),
}


def spelled_out(mask, shape, by_key):
    """Each tile's kind in the tables: 0 hidden, 1 partly masked, 2 full, by row and column."""
    blocks = mask.blocks(*shape)
    found = blocks.by_key if by_key else blocks.by_query
    column = shape[0] if by_key else shape[1]
    rows, runs, are_plain = tile_arrays(found, is_ragged=not by_key and mask.seqlen_k % column != 0)
    several = any(last - first > 1 for _, first, _, last in rows.tolist())
    assert are_plain == (not several and not (runs[:-1, 1] & 1).any())
    out = np.zeros((found.num_rows, found.num_columns), np.int8)
    assert sorted(rows[:, 0]) == list(range(found.num_rows))
    for block, first, tiles, last in rows.tolist():
        assert sum((code >> 1) - start for start, code in runs[first:last].tolist()) == tiles
        for start, code in runs[first:last].tolist():
            assert (out[block, start : code >> 1] == 0).all()
            out[block, start : code >> 1] = 1 if code & 1 else 2
    return out, rows, runs


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("shape", [(128, 64), (32, 64)])
@pytest.mark.parametrize("name", MASKS)
def test_tiles(name, shape, by_key):
    mask = MASKS[name]
    found, rows, runs = spelled_out(mask, shape, by_key)
    assert rows.dtype == runs.dtype == np.int32
    assert (np.diff(rows[:, 2]) <= 0).all(), "the rows with most tiles come first"
    assert len(runs) == rows[:, 3].max(initial=0) + 1, "one run more, that is never entered but may be read"
    dense, sides = mask.dense(), shape
    if by_key:
        dense, sides = dense.T, shape[::-1]
    for i, j in np.ndindex(*found.shape):
        tile = dense[i * sides[0] : (i + 1) * sides[0], j * sides[1] : (j + 1) * sides[1]]
        if found[i, j] == 2:
            assert tile.all()
            assert by_key or tile.shape[1] == sides[1], "keys past the end must be masked"
        else:
            assert tile.any() == (found[i, j] == 1)


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_intervals(name, by_key):
    mask = MASKS[name]
    intervals = token_intervals(mask, CPU, by_key=by_key)
    starts, stops = intervals.starts.numpy(), intervals.stops.numpy()
    assert intervals.count in (1, 2, 4, MOST_INTERVALS)
    dense = mask.dense().T if by_key else mask.dense()
    columns = np.arange(dense.shape[1])
    seen = ((starts[..., None] <= columns) & (columns < stops[..., None])).any(0)
    assert (seen == dense).all()


@pytest.mark.parametrize(
    ("pattern", "factors", "by_query", "by_key"),
    [
        ("full", {}, False, False),
        ("causal", {}, False, False),
        ("causal_document", {"documents": [3000] * 10 + [2768]}, False, False),
        # A few blocks of rows see everything, and would be the last to end.
        ("shared_question", {"documents": [2000, *[3000] * 10, 768]}, False, True),
        ("global_sliding_window", {"window": 1024, "global_tokens": 1024}, True, True),
    ],
)
def test_heads_come_first_where_few_blocks_are_long(pattern, factors, by_query, by_key):
    blocks = masks.build(pattern, seqlen=2**15, **factors).blocks(128, 64)
    assert tile_arrays(blocks.by_query, is_ragged=False).heads_first(64, 264) == by_query
    blocks = masks.build(pattern, seqlen=2**15, **factors).blocks(64, 64)
    assert tile_arrays(blocks.by_key, is_ragged=False).heads_first(8, 264) == by_key
