"""The lists against the dense mask: every step has the mask's columns, and none is listed twice."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from longca.masks import BlockSparseMask
from longca_vsa.bsa.configs import piece_of
from longca_vsa.bsa.lists import Kept, make_lists

UNEQUAL = [0, 3, 40, 41, 90, 97, 150]


def uniform(length, block):
    return np.r_[0:length:block, length]


def random_mask(q, k, heads=2, kept=0.5):
    """A mask one row and one column of which show nothing."""
    shows = np.random.default_rng(len(k)).random((heads, len(q) - 1, len(k) - 1)) < kept
    shows[0, :1], shows[:, :, -2:-1] = False, False
    return BlockSparseMask(shows, q, k)


def lists_of(mask, by_key, steps):
    bits = torch.from_numpy(mask.bits.copy())
    return make_lists(Kept(bits, len(mask.k_bounds) - 1, by_key), mask.q_bounds if by_key else mask.k_bounds, steps)


def walked(lists, step, row):
    """The columns that each step of a list takes, as the kernels walk over it."""
    first, last = lists.offsets[row : row + 2].tolist()
    entries = lists.entries.to(torch.int64)[first:last]
    if lists.piece:
        blocks = [range(b * lists.piece, min((b + 1) * lists.piece, lists.length)) for b in entries.tolist()]
        many = step // lists.piece
        return [[c for block in blocks[i : i + many] for c in block] for i in range(0, len(blocks), many)]
    taken = []
    for start, stop in (entries * lists.unit).clamp_max(lists.length).tolist():
        taken += [list(range(c, min(c + step, stop))) for c in range(start, stop, step)]
    return taken


BOUNDS = {
    **{f"blocks of {block}": uniform(150, block) for block in (1, 7, 16, 32, 48, 64, 150, 200)},
    "whole blocks of 16": uniform(128, 16),
    "whole blocks of 64": uniform(128, 64),
    "unequal blocks": np.array(UNEQUAL),
}


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("columns", BOUNDS.values(), ids=BOUNDS)
def test_steps_are_what_the_mask_shows(columns, by_key):
    rows = np.array([0, 10, 30, 64, 70])
    mask = random_mask(*((columns, rows) if by_key else (rows, columns)))
    dense = mask.dense().swapaxes(1, 2) if by_key else mask.dense()
    for piece, lists in lists_of(mask, by_key, {32, 64}).items():
        assert lists.num_rows == len(rows) - 1
        assert len(lists.entries) == int(lists.offsets[-1]) + 1
        for step, counts in lists.steps.items():
            assert piece == piece_of(columns, step)
            for row, count in enumerate(counts.flatten().tolist()):
                taken = walked(lists, step, row)
                head, block = divmod(row, len(rows) - 1)
                assert len(taken) == count
                assert [c for each in taken for c in each] == np.flatnonzero(dense[head, rows[block]]).tolist()
                if lists.is_exact(step):
                    assert all(len(each) == step for each in taken)


@pytest.mark.parametrize("block", [1, 16])
@pytest.mark.parametrize(("count", "dtype"), [(65535, torch.uint16), (65536, torch.int32)])
def test_bounds_are_of_16_bits_as_long_as_these_suffice(count, dtype, block):
    shows = np.zeros((1, 1, count), bool)
    shows[0, 0, [40000, count - 1]] = True
    mask = BlockSparseMask(shows, [0, 5], uniform(block * count, block))
    (lists,) = lists_of(mask, False, {64}).values()
    assert lists.entries.dtype == dtype
    expected = [[40000], [count - 1]] if lists.piece else [[40000, 40001], [count - 1, count]]
    assert lists.entries.to(torch.int64)[:2].reshape(2, -1).tolist() == expected
