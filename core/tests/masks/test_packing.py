"""Packed masks show each sequence's pairs, and nothing between sequences."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca import masks
from longca.errors import MaskError

from .strategies import any_cases, block_sparse_cases


def diagonal(matrices):
    """Matrices [heads, Sq, Sk] along the diagonal of a larger one."""
    heads = len(matrices[0])
    rows, columns = (sum(matrix.shape[axis] for matrix in matrices) for axis in (1, 2))
    out, row, column = np.zeros((heads, rows, columns), bool), 0, 0
    for matrix in matrices:
        out[:, row : row + matrix.shape[1], column : column + matrix.shape[2]] = matrix
        row, column = row + matrix.shape[1], column + matrix.shape[2]
    return out


@given(st.lists(any_cases(), min_size=1, max_size=4))
def test_sequences_stand_side_by_side(cases):
    packed = masks.pack([case.mask for case in cases])
    assert np.array_equal(packed.dense(), diagonal([case.dense[None] for case in cases])[0])


@given(st.lists(block_sparse_cases(heads=2), min_size=1, max_size=3))
def test_block_sparse_masks_stay_block_sparse(cases):
    packed = masks.pack([case.mask for case in cases])
    assert isinstance(packed, masks.BlockSparseMask)
    assert np.array_equal(packed.dense(), diagonal([case.dense for case in cases]))


def test_packed_documents_are_one_varlen_call():
    packed = masks.pack([masks.build("causal", length) for length in (5, 1, 9)])
    assert packed == masks.build("causal_document", 15, documents=[5, 1, 9])
    assert packed.admits(masks.Form.VARLEN)


def test_masks_that_cannot_be_packed_are_refused():
    with pytest.raises(MaskError, match="give at least one"):
        masks.pack([])
    two, one = (masks.sample("uniform_block_sparse", 8, block=4, kept=0.5, heads=heads, seed=0) for heads in (2, 1))
    with pytest.raises(MaskError, match="have 2, 1 heads; give masks of one number"):
        masks.pack([two, one])
