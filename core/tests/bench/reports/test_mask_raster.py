import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.masks import sample
from longca_bench.reports.mask_raster import count_visible, picture_block, rasterize

from ...masks import predicates
from ...masks.strategies import any_cases, block_sparse_cases

LARGE = 2**20


@given(any_cases(), st.data())
def test_cells_count_the_pairs_that_the_matrix_shows(case, data):
    q_edges, k_edges = (data.draw(_edges(seqlen)) for seqlen in case.dense.shape)
    assert count_visible(case.mask, q_edges, k_edges).tolist() == _counts(case.dense, q_edges, k_edges)


@given(block_sparse_cases(), st.data())
def test_cells_of_block_sparse_masks_are_counted_head_by_head(case, data):
    q_edges, k_edges = (data.draw(_edges(seqlen)) for seqlen in case.dense.shape[1:])
    for head, matrix in enumerate(case.dense):
        assert count_visible(case.mask, q_edges, k_edges, head).tolist() == _counts(matrix, q_edges, k_edges)


def _edges(seqlen):
    inner = st.sets(st.integers(0, seqlen), max_size=5)
    return inner.map(lambda points: np.array(sorted(points | {0, seqlen})))


def _counts(matrix, q_edges, k_edges):
    by_row = np.add.reduceat(matrix.astype(int), q_edges[:-1], axis=0)
    return np.add.reduceat(by_row, k_edges[:-1], axis=1).tolist()


@given(any_cases(), st.integers(1, 30), st.integers(1, 9))
def test_cells_know_the_state_of_their_block(case, most, block):
    raster = rasterize(case.mask, most, block)
    assert block % raster.cell == 0
    states = predicates.block_states(case.dense, block, block)
    expected = states.repeat(block // raster.cell, axis=0).repeat(block // raster.cell, axis=1)
    rows, columns = raster.shown.shape
    assert raster.state.tolist() == expected[:rows, :columns].tolist()
    assert (raster.shown[raster.state == 2] == 1).all()
    assert not raster.shown[raster.state == 0].any()


@pytest.mark.parametrize("pattern", ["causal_document", "global_sliding_window", "shared_question"])
def test_a_million_tokens_are_counted_exactly(pattern):
    mask = sample(pattern, LARGE, lengths="prolong512k", seed=2)
    edges = np.r_[np.arange(0, LARGE, 1777), LARGE]
    assert count_visible(mask, edges, edges).sum() == mask.area


@pytest.mark.parametrize(
    ("seqlen", "asked", "block"),
    [
        (8, None, None),
        (16, None, 2),
        (1024, None, 128),
        (8192, None, 128),
        (8193, None, None),
        (LARGE, None, None),
        (LARGE, 2**15, 2**15),
        (4096, 64, 64),
        (4096, 8, None),
        (4096, 1, None),
    ],
)
def test_blocks_are_told_apart_where_they_can_be_seen(seqlen, asked, block):
    assert picture_block(seqlen, asked) == block
