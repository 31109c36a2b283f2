"""Functions on packed bits return the same results as on booleans."""

import numpy as np
from hypothesis import given

from longca.masks.bitmaps import block_edges, most_runs, seen_tokens, touched_tiles, unpacked
from longca.masks.bounds import tile_spans

from .strategies import block_sparse_cases


@given(block_sparse_cases())
def test_bits_say_what_the_booleans_say(case):
    mask, kept = case.mask, case.factors["kept"]
    columns = len(mask.k_bounds) - 1
    assert [unpacked(bits, columns).tolist() for bits in mask.bits] == kept.tolist()
    sizes = np.diff(mask.k_bounds)
    assert seen_tokens(mask.bits, sizes).tolist() == (kept * sizes).sum(-1).tolist()
    edges = block_edges(mask.bits, columns)
    for axis, found in zip((1, 2), edges, strict=True):
        parts = np.split(kept, kept.shape[axis], axis)
        assert found.tolist() == [i == 0 or not np.array_equal(part, parts[i - 1]) for i, part in enumerate(parts)]


@given(block_sparse_cases())
def test_tiles_that_a_head_touches(case):
    mask = case.mask
    spans = tile_spans(mask.q_bounds, 4), tile_spans(mask.k_bounds, 3)
    for bits, dense in zip(mask.bits, case.dense, strict=True):
        rows, columns = range(0, mask.seqlen_q, 4), range(0, mask.seqlen_k, 3)
        assert touched_tiles(bits, *spans) == sum(dense[i : i + 4, j : j + 3].any() for i in rows for j in columns)


def test_runs_of_the_fullest_row_and_column():
    kept = np.array([[1, 0, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0]], bool)
    assert most_runs(kept) == (3, 1)
    assert most_runs(kept[:, 1:2]) == (1, 1)
    assert most_runs(np.zeros((2, 3), bool)) == (0, 0)
    assert most_runs(np.eye(4, dtype=bool)[[0, 1, 0, 2]]) == (1, 2)
