"""Masks from bounds, positions and matrices show exactly what their source means."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longca import masks
from longca.errors import MaskError

from .strategies import any_cases, document_lengths


def varlen_matrix(q_bounds, k_bounds, causal, window, seqlen_q, seqlen_k):
    """What flash-attn's varlen functions mean, cell by cell."""
    matrix = np.zeros((seqlen_q, seqlen_k), bool)
    left, right = window
    for q0, q1, k0, k1 in zip(q_bounds[:-1], q_bounds[1:], k_bounds[:-1], k_bounds[1:], strict=True):
        for i in range(q0, q1):
            for j in range(k0, k1):
                offset = (j - k1) - (i - q1)
                matrix[i, j] = (
                    (not causal or offset <= 0)
                    and (left < 0 or offset >= -left)
                    and (right < 0 or causal or offset <= right)
                )
    return matrix


@st.composite
def packed(draw):
    """Bounds of queries and of keys, of equally many documents. Some are empty."""
    documents = draw(st.integers(1, 4))
    lengths = st.lists(st.integers(0, 5), min_size=documents, max_size=documents)
    q, k = (np.r_[0, np.cumsum(draw(lengths))].tolist() for _ in range(2))
    return (q, k) if q[-1] and k[-1] else ([0, 2], [0, 3])


WINDOWS = st.tuples(st.integers(-1, 4), st.integers(-1, 4))


@given(packed(), st.booleans(), WINDOWS)
def test_bounds_of_queries_and_keys_mean_what_flash_attention_means(bounds, causal, window):
    q, k = bounds
    mask = masks.from_cu_seqlens(np.array(q, np.int32), torch.tensor(k), causal=causal, window_size=window)
    assert np.array_equal(mask.dense(), varlen_matrix(q, k, causal, window, q[-1], k[-1]))


@given(packed(), st.booleans(), WINDOWS, st.integers(0, 3))
def test_tokens_after_the_last_document_see_nothing(bounds, causal, window, more):
    q, _ = bounds
    seqlen = q[-1] + more
    mask = masks.from_cu_seqlens(q, causal=causal, window_size=window, seqlen=seqlen)
    assert np.array_equal(mask.dense(), varlen_matrix(q, q, causal, window, seqlen, seqlen))


def test_bounds_without_a_window_are_a_pattern():
    assert masks.from_cu_seqlens([0, 5, 5, 9], causal=True).pattern == "causal_document"
    assert masks.from_cu_seqlens([0, 5, 9], causal=True).factors["documents"] == (5, 4)
    assert masks.from_cu_seqlens([0, 5, 9], causal=False).pattern == "full_document"


@given(document_lengths(17))
def test_positions_that_start_again_begin_a_document(lengths):
    positions = np.concatenate([np.arange(length) for length in lengths])
    assert masks.from_position_ids(positions, causal=True) == masks.build("causal_document", 17, documents=lengths)
    assert masks.from_position_ids(torch.from_numpy(positions)[None], causal=True) == masks.from_position_ids(
        positions, causal=True
    )


def test_rows_of_a_batch_are_documents_apart():
    rows = torch.tensor([[0, 1, 2, 3], [4, 5, 0, 1]])
    assert masks.from_position_ids(rows, causal=True) == masks.build("causal_document", 8, documents=[4, 2, 2])


@given(any_cases())
def test_a_matrix_of_a_mask_is_that_mask(case):
    if case.mask.seqlen_q and case.mask.seqlen_k:
        found = masks.from_dense(case.dense)
        assert found == case.mask
        assert len(found.array) <= 3 * len(case.mask.array) + 2


@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_any_matrix_comes_back(seqlen_q, seqlen_k, data):
    cells = data.draw(st.lists(st.booleans(), min_size=seqlen_q * seqlen_k, max_size=seqlen_q * seqlen_k))
    matrix = np.array(cells).reshape(seqlen_q, seqlen_k)
    assert np.array_equal(masks.from_dense(matrix).dense(), matrix)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_scores_of_transformers_are_a_matrix(dtype):
    hidden = ~np.tri(6, dtype=bool)
    scores = torch.zeros((1, 1, 6, 6), dtype=dtype).masked_fill(torch.from_numpy(hidden), torch.finfo(dtype).min)
    assert masks.from_dense(scores) == masks.build("causal", 6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: masks.from_cu_seqlens([1, 4], causal=True), "starts at 1"),
        (lambda: masks.from_cu_seqlens([0, 4, 2], causal=True), "descends from 4 to 2"),
        (lambda: masks.from_cu_seqlens([0.0, 4.0], causal=True), "give integers"),
        (lambda: masks.from_cu_seqlens([0, 4], [0, 2, 4], causal=True), "1 documents and cu_seqlens_k 2"),
        (lambda: masks.from_cu_seqlens([0, 4], seqlen=3, causal=True), "seqlen is 3, and the documents end at 4"),
        (lambda: masks.from_cu_seqlens([0, 4], window_size=(-2, 0), causal=True), "give tokens from 0"),
        (lambda: masks.from_cu_seqlens([0, 4], window_size=3, causal=True), r"give integers \(left, right\)"),
        (lambda: masks.from_cu_seqlens([0, 0], causal=True), "the end of cu_seqlens is 0; lengths from 1"),
        (lambda: masks.from_position_ids([], causal=True), "give integers"),
        (lambda: masks.from_position_ids([[0, 1], [0]], causal=True), "differ in length"),
        (lambda: masks.from_dense(np.ones((2, 4, 4), bool)), "one head at a time"),
        (lambda: masks.from_dense(np.ones((4, 4), int)), "give booleans"),
        (lambda: masks.from_dense(torch.eye(4).bool().to_sparse()), r"of the layout torch.sparse_coo; give a dense"),
        (lambda: masks.from_dense(torch.eye(4, device="meta").bool()), "on the meta device; give a dense tensor"),
        (lambda: masks.from_dense(np.full((4, 4), -1.5)), "biases other than 0"),
        (lambda: masks.from_dense(np.eye(64, dtype=bool)[::-1], most=9), "more than 9 slices"),
    ],
)
def test_bad_sources_are_refused(call, words):
    with pytest.raises(MaskError, match=words):
        call()
