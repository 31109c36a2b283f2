"""Tiles of rows, and the order in which programs begin."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from longca_vsa.bsa.configs import tile_count
from longca_vsa.bsa.tables import make_tiles, tile_array

BOUNDS = np.array([0, 3, 40, 41, 90, 97, 300])


@pytest.mark.parametrize("packed", [1, 3, 8])
@pytest.mark.parametrize("block", [16, 64, 128])
def test_every_row_lies_in_one_tile_of_its_block(packed, block):
    seen = np.zeros((BOUNDS[-1], packed), int)
    table = tile_array(BOUNDS, packed, block)
    assert len(table) == tile_count(BOUNDS, packed, block)
    for start, stop, first_row, owner in table.tolist():
        assert (start, stop) == tuple(BOUNDS[owner : owner + 2])
        rows = first_row + np.arange(block)
        tokens, heads = start + rows // packed, rows % packed
        inside = tokens < stop
        assert inside.any()
        np.add.at(seen, (tokens[inside], heads[inside]), 1)
    assert (seen == 1).all()


def order_of(steps, heads):
    """The programs of one tile a block."""
    steps = torch.tensor(steps, dtype=torch.int32)
    tiles = make_tiles(np.arange(steps.shape[1] + 1), 1, 16, steps, heads)
    assert tiles.programs == heads * steps.shape[1]
    return [divmod(program, steps.shape[1]) for program in tiles.order.tolist()]


def test_rows_that_see_far_more_come_first():
    found = order_of([[10, 10, 90, 10], [10, 80, 10, 10]], 2)
    assert found[:2] == [(0, 2), (1, 1)]
    assert found[2:] == [(0, 0), (0, 1), (0, 3), (1, 0), (1, 2), (1, 3)]
