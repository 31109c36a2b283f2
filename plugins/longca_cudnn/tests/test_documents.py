"""Conversion of masks to cuDNN's terms."""

from __future__ import annotations

import pytest

from longca import masks
from longca.masks import Form, Slice, SliceMask
from longca_cudnn.documents import documents_of


def rows(documents):
    columns = documents.start_q, documents.length_q, documents.start_k, documents.length_k
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize(("pattern", "form", "blind"), [("full", Form.FULL, 0), ("causal", Form.CAUSAL, 126)])
def test_queries_before_the_first_key_are_left_out(pattern, form, blind):
    documents = documents_of(masks.build(pattern, 203, seqlen_k=77), form)
    assert rows(documents) == [(blind, 203 - blind, 0, 77)]
    assert documents.uncovered_q(203).tolist() == list(range(blind))


def test_documents_that_see_nothing_are_left_out():
    mask = SliceMask([Slice(10, 20, 5, 25, hi=5), Slice(40, 60, 30, 40, hi=-20)], 64, 50)
    documents = documents_of(mask, Form.VARLEN)
    assert rows(documents) == [(10, 10, 5, 20), (50, 10, 30, 10)]
    assert documents.uncovered_q(64).tolist() == [*range(10), *range(20, 50), *range(60, 64)]
    assert documents.uncovered_k(50).tolist() == [*range(5), *range(25, 30), *range(40, 50)]
    assert (mask.dense().any(1).nonzero()[0] == sorted({*range(64)} - set(documents.uncovered_q(64).tolist()))).all()
