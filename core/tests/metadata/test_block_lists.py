import pytest
import torch

from longca import masks
from longca.metadata.block_lists import block_lists


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
