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
)


@given(any_cases(), st.data())
def test_a_cut_shows_what_indexing_the_matrix_shows(case, data):
    q, k = data.draw(ranges(case.mask.seqlen_q)), data.draw(ranges(case.mask.seqlen_k))
    cut = case.mask.cut(q, k)
    assert cut.dense().tolist() == cut_dense(case.dense, q, k).tolist()
    assert (cut.seqlen_q, cut.seqlen_k) == (len(positions(q)), len(positions(k)))
    assert cut.area == cut_dense(case.dense, q, k).sum()


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
