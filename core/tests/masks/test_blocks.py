import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.errors import MaskError
from longca.masks import build

from . import predicates
from .strategies import any_cases

BLOCK = st.integers(1, 9)


@given(any_cases(), BLOCK, BLOCK)
def test_blocks_are_full_partial_or_absent_as_the_matrix_says(case, block_q, block_k):
    blocks = case.mask.blocks(block_q, block_k)
    expected = predicates.block_states(case.dense, block_q, block_k)
    assert blocks.by_query.dense().tolist() == expected.tolist()
    assert blocks.by_key.dense().tolist() == expected.T.tolist()


@given(any_cases(), BLOCK, BLOCK)
def test_runs_are_maximal_ordered_and_counted(case, block_q, block_k):
    blocks = case.mask.blocks(block_q, block_k)
    expected = predicates.block_states(case.dense, block_q, block_k)
    for runs, states in ((blocks.by_query, expected), (blocks.by_key, expected.T)):
        assert (runs.num_rows, runs.num_columns) == states.shape
        assert (runs.num_partial, runs.num_full) == ((states == 1).sum(), (states == 2).sum())
        for state, listed in ((1, runs.partial), (2, runs.full)):
            assert listed.dtype == np.int32
            assert listed.tolist() == [
                [row, start, stop]
                for row, line in enumerate((states == state).tolist())
                for start, stop in predicates.intervals(line)
            ]


@given(any_cases(), BLOCK, BLOCK)
def test_tile_efficiency_is_area_over_whole_tiles_touched(case, block_q, block_k):
    touched = (predicates.block_states(case.dense, block_q, block_k) > 0).sum()
    expected = case.dense.sum() / (touched * block_q * block_k) if touched else 0
    assert case.mask.tile_efficiency(block_q, block_k) == pytest.approx(expected, abs=0)


@pytest.mark.parametrize("size", [(0, 128), (128, 0), (-1, 4)])
def test_block_sizes_below_one_are_refused(size):
    with pytest.raises(MaskError, match="at least 1"):
        build("causal", 256).blocks(*size)
    for mask in (build("causal", 256), build("uniform_block_sparse", 256, block=64, kept=0.5)):
        with pytest.raises(MaskError, match="at least 1"):
            mask.tile_efficiency(*size)
