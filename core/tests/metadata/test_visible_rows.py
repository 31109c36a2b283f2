"""Rows of block-sparse masks that the device makes equal the rows of the dense matrix."""

import numpy as np
import pytest
import torch

from longca import masks
from longca.masks import BlockSparseMask
from longca.metadata.kept_blocks import VisibleRows
from longca_builtin.blockwise import query_blocks

CPU = torch.device("cpu")
MASKS = {
    "uniform": masks.build("uniform_block_sparse", 203, block=16, kept=0.4, heads=3, seed=1),
    "variable": masks.build("variable_block_sparse", 70, boundaries=(0, 3, 4, 30, 70), kept=0.4, heads=1, seed=2),
    "unequal": BlockSparseMask(np.eye(3, 4, dtype=bool), (0, 1, 9, 20), (0, 5, 6, 7, 33)),
    "no keys": BlockSparseMask(np.zeros((2, 5, 0), bool), (0, 7, 8, 9, 12, 20), (0,)),
    "nothing": BlockSparseMask(np.zeros((2, 2, 9), bool), (0, 7, 8), np.arange(10)),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("height", [1, 7, 64, 1000])
def test_rows_are_those_of_the_dense_matrix(name, height):
    mask = MASKS[name]
    dense = mask.dense().reshape(mask.heads, mask.seqlen_q, mask.seqlen_k)
    rows = VisibleRows(mask, CPU)
    for first in range(0, mask.seqlen_q, height):
        last = min(first + height, mask.seqlen_q)
        assert np.array_equal(rows(first, last).numpy(), dense[:, first:last])


def test_blocks_of_queries_of_64_heads_make_no_dense_matrix_of_the_mask(monkeypatch):
    mask = masks.build("uniform_block_sparse", 2**15, block=64, kept=0.5, heads=64)
    for name in ("cut", "dense", "head"):
        monkeypatch.setattr(BlockSparseMask, name, None)
    block = next(query_blocks(mask, 64, CPU))
    assert block.visible.shape == (64, 16, 2**15)
    assert block.visible.sum(-1).unique().tolist() == [2**14]
