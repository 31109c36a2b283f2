import numpy as np
import pytest
import torch

from longca import masks
from longca_flex.lists import SideLists, side_lists

CPU = torch.device("cpu")


def spelled_out(lists: SideLists, runs) -> np.ndarray:
    """Visibility of the lists' blocks: 0 is not visited, 1 is partly visible, 2 is fully visible."""
    out = np.zeros((runs.num_rows, runs.num_columns), np.int8)
    for value, counts, columns in ((1, lists.num_partial, lists.partial), (2, lists.num_full, lists.full)):
        for row in range(runs.num_rows):
            out[row, columns[0, 0, row, : counts[0, 0, row]].numpy()] = value
    return out


@pytest.mark.parametrize("pattern", [p for p in masks.PATTERNS if not p.endswith("block_sparse")])
@pytest.mark.parametrize("side", ["by_query", "by_key"])
def test_they_show_the_blocks_of_the_runs(pattern, side):
    runs = getattr(masks.sample(pattern, seqlen=3000, seed=1).blocks(128, 128), side)
    lists = side_lists(runs, CPU)
    assert np.array_equal(spelled_out(lists, runs), runs.dense())
    assert all(x.dtype == torch.int32 and x.is_contiguous() for x in lists)
    assert lists.partial.stride() == lists.full.stride()
    assert lists.num_partial.shape == lists.num_full.shape == lists.full.shape[:3]
