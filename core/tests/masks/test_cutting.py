import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.errors import MaskError
from longca.masks import build

from .strategies import (
    any_cases,
    block_sparse_cases,
    cut_dense,
    positions,
    ranges,
    static_cases,
    two_ranges,
)


@given(any_cases(), st.data())
def test_a_cut_shows_what_indexing_the_matrix_shows(case, data):
    q, k = data.draw(ranges(case.mask.seqlen_q)), data.draw(ranges(case.mask.seqlen_k))
    cut = case.mask.cut(q, k)
    assert cut.dense().tolist() == cut_dense(case.dense, q, k).tolist()
    assert (cut.seqlen_q, cut.seqlen_k) == (len(positions(q)), len(positions(k)))
    assert cut.area == cut_dense(case.dense, q, k).sum()


@given(any_cases(), st.data())
def test_a_cut_of_a_cut_is_the_one_composed_cut(case, data):
    q, k = data.draw(ranges(case.mask.seqlen_q)), data.draw(ranges(case.mask.seqlen_k))
    once = case.mask.cut(q, k)
    q_again, k_again = data.draw(ranges(once.seqlen_q)), data.draw(ranges(once.seqlen_k))
    composed = case.mask.cut(_compose(q, q_again), _compose(k, k_again))
    twice = once.cut(q_again, k_again)
    assert twice == composed
    assert twice.digest == composed.digest
    assert twice.dense().tolist() == cut_dense(cut_dense(case.dense, q, k), q_again, k_again).tolist()


def _compose(outer, inner):
    kept = np.array(positions(outer), int)[positions(inner)].tolist()
    return [(i, i + 1) for i in kept]


@given(static_cases(), st.data())
def test_cuts_convert_to_blocks_and_column_intervals_as_their_matrix_does(case, data):
    q, k = data.draw(two_ranges(case.mask.seqlen_q)), data.draw(two_ranges(case.mask.seqlen_k))
    cut, matrix = case.mask.cut(q, k), cut_dense(case.dense, q, k)
    states = cut.blocks(1, 1)
    assert (states.by_query.dense() == 2).tolist() == matrix.tolist()
    assert (states.by_key.dense() == 2).tolist() == matrix.T.tolist()


@given(block_sparse_cases(), st.data())
def test_block_sparse_cuts_show_what_indexing_shows(case, data):
    q, k = data.draw(ranges(case.mask.seqlen_q)), data.draw(ranges(case.mask.seqlen_k))
    heads = data.draw(st.lists(st.integers(0, case.mask.heads - 1), min_size=1, max_size=3))
    cut = case.mask.cut(q, k, heads=heads)
    expected = cut_dense(case.dense, q, k)[heads]
    assert cut.heads == len(heads)
    assert cut.dense().tolist() == (expected[0] if len(heads) == 1 else expected).tolist()
    assert cut.area == expected.sum()
    assert case.mask.cut(q, k).cut([(0, cut.seqlen_q)], [(0, cut.seqlen_k)], heads=heads) == cut


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ([(0, 9)], r"query range 0 is \(0, 9\); ranges need 0 ≤ start ≤ stop ≤ 8"),
        ([(-1, 3)], "0 ≤ start"),
        ([(0, 1), (5, 3)], "query range 1"),
        ([(0, 4), (3, 6)], r"\(0, 4\) and \(3, 6\) overlap or descend"),
        ([(4, 6), (0, 2)], "ascending and disjoint"),
        ([(0, 2.5)], "pairs of integers"),
        ([(0, "x")], "pairs of integers"),
        ([(0, None)], "pairs of integers"),
        ([(0, float("nan"))], "pairs of integers"),
        ([(0, 1, 2)], "pairs of integers"),
        ([3], "pairs of integers"),
        ([(0, 10**12)], "≤ 8"),
    ],
)
@pytest.mark.parametrize("pattern", ["causal", "uniform_block_sparse"])
def test_ranges_that_do_not_fit_are_refused(pattern, bad, words):
    mask = build("causal", 8) if pattern == "causal" else build(pattern, 8, block=3, kept=0.5)
    with pytest.raises(MaskError, match=words):
        mask.cut(bad, [(0, 8)])
    with pytest.raises(MaskError, match=words.replace("query", "key")):
        mask.cut([(0, 8)], bad)


@pytest.mark.parametrize(("heads", "words"), [([], "no head"), ([2], "head 2 of a mask of 2"), ([-1], "head -1")])
def test_heads_that_are_not_there_are_refused(heads, words):
    mask = build("uniform_block_sparse", 8, block=3, kept=0.5, heads=2)
    with pytest.raises(MaskError, match=words):
        mask.cut([(0, 8)], [(0, 8)], heads=heads)
