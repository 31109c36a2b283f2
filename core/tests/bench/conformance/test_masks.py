"""The masks are what their names say."""

import numpy as np
import pytest

from longca.masks.bounds import uniform_bounds
from longca_bench.conformance.masks import block_masks, random_blocks, skewed_blocks

BOUNDS = uniform_bounds(1103, 16)


def shares(mask):
    return np.stack([mask.kept(head).mean(1) for head in range(mask.heads)])


def test_labels_and_masks_are_told_apart():
    named = list(block_masks(203, (16, 64, 128), (0, 3, 64, 65, 130, 203)))
    assert len({label for label, _ in named}) == len(named)
    assert {mask.heads for _, mask in named} == {1, 2, 3, 8}
    assert {mask.block_size for _, mask in named} == {16, 64, 128, None}
    assert {(mask.seqlen_q, mask.seqlen_k) for _, mask in named} == {(203, 203), (77, 203), (203, 77)}
    kept = {label.partition(",")[0]: shares(mask) for label, mask in named}
    assert not kept["no block of 64"].any()
    assert (kept["every block of 64"] == 1).all()
    assert (kept["one block of 64 a row"] == 0.25).all()


def test_random_rows_have_as_many_blocks_each():
    mask = random_blocks(BOUNDS, 3)
    assert set((shares(mask) * 69).round().ravel()) == {27}
    assert len({mask.kept(head).tobytes() for head in range(3)}) == 3


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_skewed_rows_see_nothing_one_block_little_and_all(heads):
    mask = skewed_blocks(BOUNDS, heads)
    rows = shares(mask) * 69
    for of_head in rows.round():
        assert {0, 1, 69} <= set(of_head)
        assert np.median(of_head) < 0.5 * of_head.mean()
    columns = np.stack([mask.kept(head).mean(0) for head in range(heads)])
    assert (columns.max(1) > 2 * np.median(columns, axis=1)).all()
    assert len({mask.kept(head).tobytes() for head in range(heads)}) == heads
