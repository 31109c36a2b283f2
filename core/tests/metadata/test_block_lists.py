import numpy as np
import pytest
import torch

from longca import masks
from longca.metadata.block_lists import block_lists, row_offsets


def spelled_out(runs, num_rows):
    rows = [[] for _ in range(num_rows)]
    for row, start, stop in runs.tolist():
        rows[row].extend(range(start, stop))
    return rows


@pytest.mark.parametrize("pattern", [p for p in masks.PATTERNS if not p.endswith("block_sparse")])
@pytest.mark.parametrize("side", ["by_query", "by_key"])
@pytest.mark.parametrize("kind", ["full", "partial"])
def test_lists_hold_the_blocks_of_the_runs(pattern, side, kind):
    blocks = getattr(masks.sample(pattern, seqlen=3000, seed=1).blocks(64, 64), side)
    runs = getattr(blocks, kind)
    lists = block_lists(runs, blocks.num_rows, torch.device("cpu"))
    expected = spelled_out(runs, blocks.num_rows)
    assert lists.counts.tolist() == [len(row) for row in expected]
    assert lists.columns.shape == (blocks.num_rows, max(1, max(map(len, expected))))
    for row, there in zip(expected, lists.columns.tolist(), strict=True):
        assert there == row + [0] * (len(there) - len(row))


def test_chunks_give_what_one_piece_gives(monkeypatch):
    runs = masks.sample("causal_blockwise", seqlen=4096, seed=3).blocks(64, 64).by_query.partial
    whole = block_lists(runs, 64, torch.device("cpu"))
    monkeypatch.setattr("longca.metadata.block_lists._CHUNK", 7)
    pieces = block_lists(runs, 64, torch.device("cpu"))
    assert torch.equal(whole.columns, pieces.columns)


def test_no_runs():
    lists = block_lists(np.zeros((0, 3), np.int32), 3, torch.device("cpu"), width=2)
    assert lists.counts.tolist() == [0, 0, 0]
    assert lists.columns.tolist() == [[0, 0]] * 3


def test_row_offsets():
    runs = np.array([[1, 0, 2], [1, 4, 5], [3, 0, 1]], np.int32)
    assert row_offsets(runs, 4).tolist() == [0, 0, 2, 2, 3]
