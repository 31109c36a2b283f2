import gc
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.errors import MaskError
from longca.masks import MAX_DENSE_CELLS, BlockSparseMask, Form, Mask, Slice, SliceMask, build

from .strategies import any_cases


@given(any_cases())
def test_a_mask_shows_its_matrix_and_knows_its_sizes(case):
    m = case.mask
    assert m.dense().dtype == np.bool_
    assert m.dense().tolist() == case.dense.tolist()
    assert (m.seqlen_q, m.seqlen_k) == case.dense.shape
    assert type(m.area) is int
    assert m.area == case.dense.sum()
    assert m.density == pytest.approx(case.dense.mean(), abs=0)
    assert m.is_empty == (not case.dense.any())
    assert m.is_square == (m.seqlen_q == m.seqlen_k)
    assert (m.heads, m.block_size) == (1, None)
    assert m.head(0) is m


def _in_single_cells(case):
    """The same mask, made of one slice for each visible pair."""
    cells = [Slice(int(i), int(i) + 1, int(j), int(j) + 1) for i, j in np.argwhere(case.dense)]
    return SliceMask(cells, *case.dense.shape)


def _as_blocks(case):
    """The same mask, as a bitmap of blocks of one token."""
    return BlockSparseMask(case.dense, *(list(range(n + 1)) for n in case.dense.shape))


@given(any_cases())
def test_masks_that_show_the_same_are_equal_whatever_they_are_made_of(case):
    for other in (_in_single_cells(case), _as_blocks(case)):
        assert case.mask == other
        assert other == case.mask
        assert hash(case.mask) == hash(other)
        assert case.mask.digest == other.digest


@given(any_cases(), st.data())
def test_a_mask_that_differs_in_one_pair_is_another(case, data):
    i, j = (data.draw(st.integers(0, n - 1)) for n in case.dense.shape)
    flipped = case.dense.copy()
    flipped[i, j] ^= True
    other = _in_single_cells(case._replace(dense=flipped))
    assert case.mask != other
    assert case.mask.digest != other.digest


def test_the_digest_is_the_same_everywhere():
    mask = build("shared_question", 4096, documents=[1000, 96, 3000])
    assert mask.digest == "2f453594f861ee69"
    assert build("uniform_block_sparse", 512, block=64, kept=0.5, heads=2).digest == "136bf6d914a30b60"
    program = "from longca.masks import build; print(build('shared_question', 4096, documents=[1000, 96, 3000]).digest)"
    again = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert again.stdout.strip() == mask.digest


def test_a_key_finds_its_mask_while_it_lives():
    mask = build("causal", 4)
    key = mask.key
    assert Mask.by_key(key) is mask
    assert build("causal", 4).key != key
    del mask
    gc.collect()
    with pytest.raises(MaskError, match=f"key {key} no longer exists; keep a reference"):
        Mask.by_key(key)


def test_dense_matrices_are_refused_above_the_stated_size():
    assert MAX_DENSE_CELLS == 2**16 * 2**16
    with pytest.raises(MaskError, match=r"64 GiB; at most 4 GiB are made\. Use row_intervals, blocks or cut"):
        build("causal", 2**18).dense()
    with pytest.raises(MaskError, match="4 GiB"):
        build("uniform_block_sparse", 2**16, block=128, kept=0.5, heads=2).dense()
    assert not build("causal", 2**16 + 1).admits(Form.DENSE)
    assert build("causal", 2**16).admits(Form.DENSE)


def test_masks_do_not_change():
    mask = build("causal", 4)
    with pytest.raises(ValueError, match="read-only"):
        mask.array[0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        build("uniform_block_sparse", 4, block=2, kept=1).bits[0] = 0
