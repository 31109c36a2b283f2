import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca import masks
from longca.errors import MaskError
from longca.masks import BlockSparseMask, Form, build

from . import predicates
from .strategies import block_sparse_cases


@given(block_sparse_cases())
def test_it_shows_the_blocks_that_each_head_keeps(case):
    m = case.mask
    assert m.dense().tolist() == (case.dense if m.heads > 1 else case.dense[0]).tolist()
    assert m.area_by_head.tolist() == case.dense.sum(axis=(1, 2)).tolist()
    assert m.area == case.dense.sum()
    assert m.density == pytest.approx(case.dense.mean(), abs=0)
    for h in range(m.heads):
        assert m.kept(h).tolist() == case.factors["kept"][h].tolist()


@given(block_sparse_cases())
def test_how_many_keys_each_query_sees(case):
    assert case.mask.visible_keys().tolist() == case.dense.sum(axis=2).tolist()


@given(block_sparse_cases())
def test_each_head_is_a_mask_of_slices_that_shows_the_same(case):
    for h, matrix in enumerate(case.dense):
        head = case.mask.head(h)
        assert head.dense().tolist() == matrix.tolist()
        assert head.area == matrix.sum()


@given(block_sparse_cases(heads=1), st.integers(1, 7), st.integers(1, 7))
def test_one_mask_for_all_heads_converts_as_its_slices_do(case, block_q, block_k):
    m, matrix = case.mask, case.dense[0]
    for mine, theirs in ((m.row_intervals(), m.head(0).row_intervals()), (m.column_intervals(), _columns(m))):
        assert [x.tolist() for x in mine] == [x.tolist() for x in theirs]
    expected = predicates.block_states(matrix, block_q, block_k)
    assert m.blocks(block_q, block_k).by_query.dense().tolist() == expected.tolist()
    for form in set(Form) - {Form.BLOCK_SPARSE}:
        assert m.admits(form) == m.head(0).admits(form)
    for form in (Form.ROW_INTERVALS, Form.COLUMN_INTERVALS, Form.LAYERS, Form.FULL):
        assert m.count(form) == m.head(0).count(form)


def _columns(mask):
    return mask.head(0).column_intervals()


@given(block_sparse_cases(heads=2))
def test_heads_that_differ_are_converted_one_at_a_time(case):
    for convert in (
        case.mask.row_intervals,
        case.mask.column_intervals,
        lambda: case.mask.blocks(4, 4),
    ):
        with pytest.raises(MaskError, match=r"2 heads of this mask.* differ; convert one at a time: mask.head\(h\)"):
            convert()
    assert not case.mask.admits(Form.ROW_INTERVALS)
    assert case.mask.count(Form.BLOCK_SPARSE) == 1


@given(block_sparse_cases(), st.data())
def test_equality_is_of_what_is_shown_whatever_the_bounds(case, data):
    m = case.mask
    at = data.draw(st.integers(0, len(m.q_bounds) - 2))
    token = data.draw(st.integers(int(m.q_bounds[at]), int(m.q_bounds[at + 1])))
    finer = sorted({*m.q_bounds.tolist(), token})
    kept = case.factors["kept"]
    kept = np.repeat(kept, 1 + (np.arange(kept.shape[1]) == at) * (len(finer) - len(m.q_bounds)), axis=1)
    other = BlockSparseMask(kept, finer, m.k_bounds)
    assert other == m
    assert hash(other) == hash(m)
    assert other.fingerprint == m.fingerprint
    assert other.digest == m.digest


def test_digests_are_those_of_earlier_records():
    factors = {(16, 2): "3fd478a5a2561554", (64, 2): "076222ee59911ff6", (16, 8): "e895f03c37a9cf5b"}
    for (block, heads), digest in factors.items():
        assert build("uniform_block_sparse", 4096, block=block, kept=0.3, heads=heads, seed=1).digest == digest


@pytest.mark.parametrize(
    ("q_bounds", "k_bounds", "size"),
    [
        ([0, 4, 8], [0, 4, 8], 4),
        ([0, 4, 7], [0, 4, 8], 4),
        ([0, 4, 8], [0, 4, 9], None),
        ([0, 4, 8], [0, 3, 6], None),
        ([0, 3], [0, 3], 3),
    ],
)
def test_the_block_size_is_that_of_all_blocks_but_the_last(q_bounds, k_bounds, size):
    kept = np.ones((len(q_bounds) - 1, len(k_bounds) - 1), bool)
    assert BlockSparseMask(kept, q_bounds, k_bounds).block_size == size


@pytest.mark.parametrize(
    ("kept", "q_bounds", "k_bounds", "words"),
    [
        (np.ones((1, 2, 3)), [0, 1, 2], [0, 1, 2], r"shape \(1, 2, 3\); these bounds need \[heads, 2, 2\]"),
        (np.ones(3), [0, 1], [0, 1], "heads, 1, 1"),
        (np.ones((1, 1)), [0, 1], [0, 2, 2], "key block bounds must ascend, but 2 is followed by 2"),
        (np.ones((1, 1)), [[0], [1, 2]], [0, 1], "list of integers"),
        (np.ones((1, 2)), np.array([0, 5, 3], np.uint64), [0, 1], "5 is followed by 3"),
    ],
)
def test_bitmaps_and_bounds_that_do_not_fit_are_refused(kept, q_bounds, k_bounds, words):
    with pytest.raises(MaskError, match=words):
        BlockSparseMask(kept, q_bounds, k_bounds)


@pytest.mark.parametrize("pattern", ["uniform_block_sparse", "variable_block_sparse"])
@pytest.mark.parametrize("kept", [0.3, 1.0])
def test_a_random_bitmap_is_not_drawn_for_questions_that_its_counts_answer(pattern, kept):
    asked = masks.sample(pattern, 1100, heads=2, kept=kept, seed=3)
    full, empty, size = asked.admits(Form.FULL), asked.is_empty, asked.nbytes
    assert "bits" not in vars(asked)
    drawn = pickle.loads(pickle.dumps(asked))
    same = BlockSparseMask.from_bits(drawn.bits, drawn.q_bounds, drawn.k_bounds)
    assert (full, empty, size) == (same.admits(Form.FULL), same.is_empty, same.nbytes)
    assert asked == same
    assert (hash(asked), asked.digest) == (hash(same), same.digest)
