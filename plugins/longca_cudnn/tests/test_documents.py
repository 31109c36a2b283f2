"""Conversion of masks to cuDNN's terms."""

from __future__ import annotations

import pytest

from longca import masks
from longca.masks import Form, Slice, SliceMask, Window
from longca_cudnn.documents import band, bucket, documents_of


@pytest.mark.parametrize(
    ("window", "bounds"),
    [
        (Window(None, None), (None, None)),
        (Window(None, 0), (None, 0)),
        (Window(0, 0), (1, 0)),  # the diagonal alone: d − 1 < j ≤ d
        (Window(1024, 1024), (1025, 1024)),
        (Window(7, None), (8, None)),
    ],
)
def test_bands(window, bounds):
    assert band(window) == bounds


def test_buckets_are_few_and_near():
    for least in (1, 128):
        sizes = range(1, 5000)
        found = [bucket(size, least) for size in sizes]
        assert all(rounded >= size for size, rounded in zip(sizes, found, strict=True))
        assert all(rounded <= max(least, 1.5 * size) for size, rounded in zip(sizes, found, strict=True))
        assert all(bucket(rounded, least) == rounded for rounded in set(found))
        assert len(set(found)) <= 2 * 13
    assert [bucket(2**power, 128) for power in range(5, 20)] == [max(128, 2**power) for power in range(5, 20)]


def rows(documents):
    columns = documents.start_q, documents.length_q, documents.start_k, documents.length_k
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_one_document_where_the_mask_is_dense():
    documents = documents_of(masks.build("full_sliding_window", 77, seqlen_k=203, window=9), Form.WINDOW)
    assert rows(documents) == [(0, 77, 0, 203)]
    assert documents.window == Window(9, 9)
    assert not documents.are_square
    assert not len(documents.uncovered_q(77))


@pytest.mark.parametrize(("pattern", "form", "blind"), [("full", Form.FULL, 0), ("causal", Form.CAUSAL, 126)])
def test_queries_before_the_first_key_are_left_out(pattern, form, blind):
    documents = documents_of(masks.build(pattern, 203, seqlen_k=77), form)
    assert rows(documents) == [(blind, 203 - blind, 0, 77)]
    assert documents.uncovered_q(203).tolist() == list(range(blind))


def test_what_a_window_reaches_beyond_the_diagonal_is_kept():
    mask = masks.build("full_sliding_window", 203, seqlen_k=77, window=40)
    assert rows(documents_of(mask, Form.WINDOW)) == [(86, 117, 0, 77)]
    assert mask.dense()[86:].any(1).all()
    assert not mask.dense()[:86].any()


def test_documents_that_see_nothing_are_left_out():
    mask = SliceMask([Slice(10, 20, 5, 25, hi=5), Slice(40, 60, 30, 40, hi=-20)], 64, 50)
    documents = documents_of(mask, Form.VARLEN)
    assert rows(documents) == [(10, 10, 5, 20), (50, 10, 30, 10)]
    assert documents.uncovered_q(64).tolist() == [*range(10), *range(20, 50), *range(60, 64)]
    assert documents.uncovered_k(50).tolist() == [*range(5), *range(25, 30), *range(40, 50)]
    assert (mask.dense().any(1).nonzero()[0] == sorted({*range(64)} - set(documents.uncovered_q(64).tolist()))).all()
