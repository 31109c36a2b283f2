import numpy as np
import pytest
import torch

from longca import masks
from longca.masks import BlockSparseMask
from longca.metadata.kept_blocks import kept_blocks, kept_lists, tile_lists

CPU = torch.device("cpu")
UNIFORM = masks.build("uniform_block_sparse", 203, block=16, kept=0.4, heads=3, seed=1)
VARIABLE = masks.build("variable_block_sparse", 203, boundaries=(0, 3, 64, 65, 130, 203), kept=0.4, heads=8, seed=2)
SKEWED = BlockSparseMask(np.array([[[1, 1, 0], [0, 0, 0]], [[0, 0, 1], [1, 1, 1]]]), (0, 5, 9), (0, 2, 30, 33))
MASKS = pytest.mark.parametrize("mask", [UNIFORM, VARIABLE, SKEWED], ids=["uniform", "variable", "skewed"])


def dense_of(lists, columns):
    counts, entries = lists
    out = np.zeros((*counts.shape, columns), bool)
    for head, rows in enumerate(counts.tolist()):
        for row, count in enumerate(rows):
            there = entries[head, row].tolist()
            assert there[:count] == sorted(set(there[:count])), "ascending, each once"
            assert not any(there[count:])
            out[head, row, there[:count]] = True
    return out


def every_head(mask):
    return np.stack([mask.kept(head) for head in range(mask.heads)])


@MASKS
def test_kept_blocks(mask):
    assert np.array_equal(kept_blocks(mask, CPU).numpy(), every_head(mask))


@MASKS
@pytest.mark.parametrize("by_key", [False, True])
def test_kept_lists(mask, by_key):
    expected = every_head(mask)
    expected = expected.swapaxes(1, 2) if by_key else expected
    lists = kept_lists(mask, CPU, by_key=by_key)
    assert lists.counts.dtype == lists.columns.dtype == torch.int32
    assert lists.columns.shape[-1] == max(1, expected.sum(-1).max())
    assert np.array_equal(dense_of(lists, expected.shape[-1]), expected)


@MASKS
@pytest.mark.parametrize("tile", [(128, 128), (64, 32), (7, 5)])
@pytest.mark.parametrize("by_key", [False, True])
def test_tile_lists_are_those_of_each_head(mask, tile, by_key):
    partial, full = tile_lists(mask, *tile, CPU, by_key=by_key)
    for head in range(mask.heads):
        blocks = mask.head(head).blocks(*tile)
        expected = blocks.by_query.dense()
        expected = expected.T if by_key else expected
        assert np.array_equal(dense_of(partial, expected.shape[1])[head], expected == 1)
        assert np.array_equal(dense_of(full, expected.shape[1])[head], expected == 2)
