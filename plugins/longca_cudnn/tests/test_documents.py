"""Conversion of masks to cuDNN's terms."""

from __future__ import annotations

import pytest

from longca import masks
from longca.masks import Form
from longca_cudnn.documents import documents_of


def rows(documents):
    columns = documents.start_q, documents.length_q, documents.start_k, documents.length_k
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize(("pattern", "form", "blind"), [("full", Form.FULL, 0), ("causal", Form.CAUSAL, 126)])
def test_queries_before_the_first_key_are_left_out(pattern, form, blind):
    documents = documents_of(masks.build(pattern, 203, seqlen_k=77), form)
    assert rows(documents) == [(blind, 203 - blind, 0, 77)]
    assert documents.uncovered_q(203).tolist() == list(range(blind))
