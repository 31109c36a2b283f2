import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.errors import MaskError
from longca.masks import Form, build
from longca.masks.intervals import interval_pieces, ragged

from . import predicates
from .strategies import any_cases


def _listed(starts, stops):
    """The intervals of each row, without the unused [0, 0)."""
    rows = zip(starts.T.tolist(), stops.T.tolist(), strict=True)
    return [[pair for pair in zip(*row, strict=True) if pair != (0, 0)] for row in rows]


@given(any_cases())
def test_row_intervals_are_each_query_s_maximal_intervals_in_ascending_order(case):
    starts, stops = case.mask.row_intervals()
    expected = [predicates.intervals(row) for row in case.dense.tolist()]
    assert _listed(starts, stops) == expected
    assert starts.dtype == stops.dtype == np.int32
    assert len(starts) == max(map(len, expected)) == case.mask.count(Form.ROW_INTERVALS)


@given(any_cases())
def test_column_intervals_are_the_row_intervals_of_the_transposed_matrix(case):
    starts, stops = case.mask.column_intervals()
    expected = [predicates.intervals(column) for column in case.dense.T.tolist()]
    assert _listed(starts, stops) == expected
    assert len(starts) == max(map(len, expected)) == case.mask.count(Form.COLUMN_INTERVALS)


@given(any_cases(), st.integers(0, 3))
def test_a_larger_n_pads_with_empty_intervals_and_a_smaller_one_is_refused(case, extra):
    n = case.mask.count(Form.ROW_INTERVALS)
    starts, stops = case.mask.row_intervals(n + extra)
    assert starts.shape == stops.shape == (n + extra, case.mask.seqlen_q)
    assert not starts[n:].any()
    assert not stops[n:].any()
    if n:
        with pytest.raises(MaskError, match=f"{n} intervals"):
            case.mask.row_intervals(n - 1)


def test_too_many_intervals_by_key_name_the_mask_and_the_number():
    mask = build("causal_blockwise", 6, documents=[2, 2, 2])
    with pytest.raises(
        MaskError, match=r"a key of this causal_blockwise of 6 tokens has 2 intervals of queries, not 1"
    ):
        mask.column_intervals(1)


def test_pieces_refuse_too_many_intervals():
    pieces = build("shared_question", 6, documents=[2, 2, 2]).row_pieces
    with pytest.raises(ValueError, match="2 intervals, more than the 1"):
        pieces.expand(1)


@given(any_cases(), any_cases())
def test_pieces_are_the_same_exactly_where_the_matrices_are(first, second):
    if first.dense.shape[0] == second.dense.shape[0]:
        expected = first.dense.shape == second.dense.shape and (first.dense == second.dense).all()
        wider = np.zeros((2, len(first.dense), 99), bool)
        for padded, case in zip(wider, (first, second), strict=True):
            padded[:, : case.dense.shape[1]] = case.dense
        same = first.mask.row_pieces.same(second.mask.row_pieces)
        assert same == (wider[0] == wider[1]).all()
        assert same or not expected


@given(any_cases(), st.lists(st.integers(1, 11), max_size=4))
def test_splitting_rows_shows_the_same(case, at):
    pieces = case.mask.row_pieces
    at = np.array([x for x in at if x < case.mask.seqlen_q], np.int64)
    split = pieces.split_rows(at)
    assert set(at) <= set(split.rows)
    assert split.same(pieces)
    for mine, theirs in zip(split.expand(), pieces.expand(), strict=True):
        assert mine.tolist() == theirs.tolist()


def test_pieces_stay_few_at_the_longest_length():
    pieces = build("global_sliding_window", 2**30, window=2**20, global_tokens=2**10).row_pieces
    assert len(pieces.segment) < 12
    assert pieces.max_intervals == 2


def test_a_mask_without_slices_has_no_intervals():
    pieces = interval_pieces(np.empty((0, 6), np.int64), 5)
    assert pieces.max_intervals == 0
    assert [x.shape for x in pieces.expand()] == [(0, 5), (0, 5)]
    assert [x.tolist() for x in pieces.expand(1)] == [[[0] * 5]] * 2


def test_ragged_lists_the_elements_of_ranges():
    owner, element = ragged(np.array([5, 0, 9]), np.array([2, 0, 1]))
    assert owner.tolist() == [0, 0, 2]
    assert element.tolist() == [5, 6, 9]
