import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.masks import Form, SliceMask, Window, build

from . import predicates
from .strategies import any_cases, cut_dense, ranges


@st.composite
def shown_masks(draw):
    """(mask, matrix) of a pattern or of random slices, whole or cut, with at least one visible pair."""
    case = draw(any_cases())
    mask, matrix = case.mask, case.dense
    if draw(st.booleans()):
        q, k = draw(ranges(mask.seqlen_q)), draw(ranges(mask.seqlen_k))
        mask, matrix = mask.cut(q, k), cut_dense(matrix, q, k)
    return mask, matrix


@given(shown_masks())
def test_full_and_causal_are_recognised_exactly_where_the_matrix_is(shown):
    mask, matrix = shown
    if not mask.is_empty:
        assert mask.admits(Form.FULL) == matrix.all()
        assert mask.admits(Form.CAUSAL) == (matrix == predicates.dense("causal", *matrix.shape, {})).all()


@given(shown_masks())
def test_a_window_is_recognised_exactly_where_the_matrix_is_one(shown):
    mask, matrix = shown
    if not mask.is_empty:
        assert (mask.window is not None) == mask.admits(Form.WINDOW) == _is_a_window(matrix)
    if mask.window is not None:
        assert _window_matrix(mask.window, *matrix.shape).tolist() == matrix.tolist()


def _window_matrix(window, seqlen_q, seqlen_k):
    left, right = (seqlen_q + seqlen_k if side is None else side for side in window)
    cells = [[-left <= j - i - (seqlen_k - seqlen_q) <= right for j in range(seqlen_k)] for i in range(seqlen_q)]
    return np.array(cells)


def _is_a_window(matrix):
    seqlen_q, seqlen_k = matrix.shape
    offsets = [j - i - (seqlen_k - seqlen_q) for i, j in np.argwhere(matrix)]
    # The band reaches exactly as far as the matrix, if FlashAttention can express it: both sides ≥ 0.
    window = Window(max(0, -min(offsets)), max(0, max(offsets)))
    return bool((_window_matrix(window, seqlen_q, seqlen_k) == matrix).all())


@given(shown_masks())
def test_varlen_shows_the_matrix_in_flash_attention_s_semantics(shown):
    mask, matrix = shown
    assert mask.admits(Form.VARLEN) == (mask.varlen is not None)
    if mask.varlen is not None:
        assert predicates.showings([mask.varlen], *matrix.shape).tolist() == matrix.astype(int).tolist()
        assert mask.varlen.cu_seqlens_q.dtype == mask.varlen.cu_seqlens_k.dtype == np.int32
        assert mask.varlen.max_seqlen_q == np.diff(mask.varlen.cu_seqlens_q).max()
        assert mask.varlen.max_seqlen_k == np.diff(mask.varlen.cu_seqlens_k).max()


@given(shown_masks())
def test_layers_show_each_visible_pair_in_exactly_one_call(shown):
    mask, matrix = shown
    assert predicates.showings(mask.layers, *matrix.shape).tolist() == matrix.astype(int).tolist()
    assert mask.count(Form.LAYERS) == len(mask.layers)
    assert (len(mask.layers) == 1) == mask.admits(Form.VARLEN)


@pytest.mark.parametrize(
    ("pattern", "factors", "window"),
    [
        ("full", {}, Window(None, None)),
        ("causal_sliding_window", {"window": 3}, Window(3, 0)),
        ("full_sliding_window", {"window": 3}, Window(3, 3)),
        ("causal_document", {"documents": [8]}, Window(None, 0)),
        ("prefix_lm_causal", {"prefix": 8}, Window(None, None)),
        ("global_sliding_window", {"window": 2, "global_tokens": 0}, Window(2, 2)),
    ],
)
def test_degenerate_factors_are_recognised_for_what_they_are(pattern, factors, window):
    assert build(pattern, 8, **factors).window == window


def test_masks_that_show_nothing_take_no_form_of_a_band():
    empty = SliceMask([], 4, 4)
    assert empty.window is None
    assert empty.varlen is None
    assert empty.layers == []
    assert not any(empty.admits(form) for form in (Form.FULL, Form.CAUSAL, Form.WINDOW, Form.VARLEN))
