"""Endpoints against the dense matrix, spelled out apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given

from longca import masks
from longca.masks import Form, Slice, SliceMask
from longca_cudnn.flex.kernel import blind_queries, count_of, endpoints_of

from ..drawn import slice_masks

CPU = torch.device("cpu")


def spelled_out(endpoints, keys):
    """The matrix that endpoints [heads, n, Tq] show: [heads, Tq, Tk]."""
    assert endpoints.dtype == torch.int32
    assert endpoints.is_contiguous()
    heads, count, queries = endpoints.shape
    assert count % 2 == 1
    seen = np.zeros((heads, queries, keys), np.bool_)
    for head, query in np.ndindex(heads, queries):
        ends = [0, *endpoints[head, :, query].tolist()]
        assert ends == sorted(ends)
        assert ends[-1] <= keys
        for start, stop in zip(ends[0::2], ends[1::2], strict=True):
            assert not seen[head, query, start:stop].any()
            seen[head, query, start:stop] = True
    return seen


def fewest(dense):
    """The fewest endpoints that a matrix [.., Tk] needs: an odd number."""
    turns = np.diff(dense.astype(int), axis=-1, prepend=1) != 0
    return int(turns.sum(-1).max(initial=0)) | 1


def check(mask, dense, heads_q):
    endpoints = endpoints_of(mask, heads_q, CPU)
    expected = dense if dense.ndim == 3 else dense[None]
    assert len(endpoints) == (1 if len(expected) == 1 else heads_q)
    assert (spelled_out(endpoints, mask.seqlen_k) == expected.repeat(len(endpoints) // len(expected), 0)).all()
    assert (blind_queries(endpoints).numpy() == ~expected.any(-1).repeat(len(endpoints) // len(expected), 0)).all()
    return endpoints.shape[1]


@given(slice_masks())
def test_any_intervals(drawn):
    mask, dense = drawn
    assert check(mask, dense, 8) == fewest(dense) == count_of(mask.row_pieces)


@pytest.mark.parametrize(
    ("mask", "count"),
    [
        (masks.build("full", 20), 1),
        (masks.build("causal", 20, seqlen_k=13), 1),
        (masks.build("causal_sliding_window", 20, window=4), 3),
        (masks.build("full_document", 20, documents=(7, 1, 12)), 3),
        (masks.build("global_sliding_window", 40, window=4, global_tokens=3), 3),
        (masks.build("shared_question", 20, documents=(6, 5, 9)), 3),
        (SliceMask([Slice(0, 5, 0, 5, 0, 0)], 5, 5), 3),  # one diagonal: only its first row begins at key 0
        (SliceMask([Slice(0, 1, 0, 1, 0, 0)], 1, 1), 1),
        (SliceMask([Slice(2, 4, 1, 3), Slice(4, 6, 0, 2), Slice(4, 6, 3, 4)], 8, 5), 3),
        (SliceMask([], 4, 5), 1),
    ],
)
def test_the_number_is_the_smallest(mask, count):
    assert mask.admits(Form.ROW_INTERVALS)
    assert check(mask, mask.dense(), 4) == count == fewest(mask.dense())
