import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.errors import MaskError
from longca.masks import Form

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
