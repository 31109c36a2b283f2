import numpy as np
import pytest
import torch

from longca import masks
from longca.masks import PATTERNS, Slice, SliceMask
from longca.metadata.interval_tables import interval_tables

CPU = torch.device("cpu")
MASKS = {
    **{
        name: masks.sample(name, 257, lengths="auto", seed=0)
        for name, pattern in PATTERNS.items()
        if not pattern.per_head
    },
    "three intervals": SliceMask([Slice(0, 90, k, k + 40, -300, 200) for k in (3, 100, 222)], 300, 384),
    "nothing": SliceMask([], 5, 7),
    "no rows": SliceMask([], 0, 7),
}


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_intervals_are_those_of_the_mask(name, by_key):
    mask = MASKS[name]
    expected = mask.column_intervals() if by_key else mask.row_intervals()
    for found, side in zip(
        interval_tables(mask.column_pieces if by_key else mask.row_pieces, CPU), expected, strict=True
    ):
        assert found.dtype == torch.int32
        assert np.array_equal(found.numpy(), side)


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_empty_rows(name, by_key):
    mask = MASKS[name]
    seen = mask.dense().any(0 if by_key else 1)
    found = (mask.column_pieces if by_key else mask.row_pieces).empty_rows()
    assert np.array_equal(np.zeros_like(seen) if found is None else found, ~seen)
    assert found is None or found.any()
