"""Sizes of FlashInfer's lists and buffers, compared with a plain count."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from longca import Device, Problem, masks
from longca.masks import BlockSparseMask
from longca_flashinfer.limits import listed
from longca_flashinfer.memory import Sizes, check_memory, sizes_of

H200 = Device("cuda", (9, 0))


def problem(mask, heads=(64, 8), **options):
    return Problem(mask=mask, heads_q=heads[0], heads_kv=heads[1], device=H200, **options)


def plainly(mask, heads_kv):
    """The entries of the lists, counted one at a time."""
    sizes, blocks, keys = np.diff(mask.k_bounds), 0, 0
    for head in range(heads_kv):
        for row in mask.kept(head % mask.heads):
            found = [size for size, sees in zip(sizes, row, strict=True) if sees] or [sizes[0]]
            blocks, keys = blocks + len(found), keys + sum(found)
    return blocks, keys


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("seed", range(3))
def test_listed_keys(heads, seed):
    random = np.random.default_rng(seed)
    bounds_q, bounds_k = (np.r_[0, np.cumsum(random.integers(1, 90, count))] for count in (7, 9))
    mask = BlockSparseMask(random.random((heads, 7, 9)) < 0.3, bounds_q, bounds_k)
    assert listed(mask, 4) == plainly(mask, 4)


def test_sizes_at_32_k():
    """Half of 512 × 512 blocks of 64 for each of 8 heads make 2²⁶ keys in 4096 rows."""
    mask = masks.build("uniform_block_sparse", 32768, block=64, kept=0.5, heads=8)
    sizes = sizes_of(problem(mask), "fa3", processors=132)
    assert (sizes.rows, sizes.keys) == (4096, 2**26)
    assert sizes.peak_bytes == pytest.approx(32 * 2**26 + 72 * 2**20 + 10 * 2**21, rel=0.02)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_fa2_has_room_for_split_rows_only_where_there_are_few(head_dim):
    few = masks.build("uniform_block_sparse", 2048, block=64, kept=0.5, heads=8)
    many = masks.build("uniform_block_sparse", 2112, block=64, kept=0.5, heads=8)
    split, whole = (sizes_of(problem(mask, head_dim=head_dim), "fa2", processors=128) for mask in (few, many))
    assert split.rows == 2 * 128
    assert split.float_bytes >= 4 * 8 * 2 * 128 * 128 * (head_dim + 1)
    assert whole.float_bytes == sizes_of(problem(few), "fa3", processors=128).float_bytes == 2**20


def test_schedules_fit():
    """131072 rows of one 64-row tile each take three numbers a tile and a bound a row, or seven a tile."""
    mask = masks.build("uniform_block_sparse", 131072, block=64, kept=0.01, heads=1)
    asked = problem(mask, (64, 64))
    assert sizes_of(asked, "fa2", processors=132).int_bytes >= 4 * (3 * 131072 + 131073)
    assert sizes_of(asked, "fa3", processors=132).int_bytes >= 4 * 7 * 131072


def test_what_does_not_fit_is_refused():
    sizes = Sizes(rows=1, keys=2**30, int_bytes=0, float_bytes=0, peak_bytes=2**35)
    check_memory(sizes, 2**35)
    with pytest.raises(torch.OutOfMemoryError, match=r"32.0 GiB for lists of 1073741824 keys, and 31.0 GiB are free"):
        check_memory(sizes, 31 * 2**30)
