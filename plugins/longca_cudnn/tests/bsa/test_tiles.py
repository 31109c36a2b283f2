"""Blocks in tiles against the dense matrix."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from longca_cudnn.bsa.kernel import TiledSide, in_tiles

from ..drawn import block_masks, bounds

SIZES = st.one_of(st.integers(1, 200), st.sampled_from([64, 128, 192, 256]))


@given(bounds(sizes=SIZES), st.sampled_from([64, 128]))
def test_a_side_is_padded_to_whole_tiles(starts, tile):
    side = TiledSide(starts, tile)
    padded = np.full(side.num_tiles * tile, -1)
    padded[side.places] = np.arange(side.tokens)
    rows = padded.reshape(-1, tile)
    assert ((rows >= 0).sum(1) == side.sizes).all()
    for row, size, block in zip(rows, side.sizes, side.owner, strict=True):
        assert (row[:size] == np.arange(row[0], row[0] + size)).all()
        assert starts[block] <= row[0]
        assert row[size - 1] < starts[block + 1]
    assert side.is_dense == (side.places == np.arange(side.tokens)).all()


@given(block_masks(sizes=SIZES), st.sampled_from([64, 128]))
def test_tiles_show_what_blocks_show(drawn, tile):
    mask, dense = drawn
    tiled = in_tiles(mask, tile)
    rows, columns = TiledSide(mask.q_bounds, tile), TiledSide(mask.k_bounds, tile)
    shown = np.stack([tiled.kept(head) for head in range(tiled.heads)])
    assert shown.shape == (mask.heads, rows.num_tiles, columns.num_tiles)
    shown = shown[:, rows.places // tile][:, :, columns.places // tile]
    assert (shown == dense).all()
