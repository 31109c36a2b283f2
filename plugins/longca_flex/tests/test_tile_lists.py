"""Lists of tiles and bits of blocks show exactly the mask, for every query head."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from longca import Device, Problem, masks
from longca.manifests.sizes import Size
from longca.masks import BlockSparseMask
from longca_flex.pieces import is_visible
from longca_flex.tile_lists import kept_bits, tile_side_lists
from longca_flex.tiles import tile_size

CPU = torch.device("cpu")
HEADS_Q = 6
BLOCKS = {16: 64, 48: 64, 64: 64, 128: 128, 192: 64, 256: 128}


def uniform(block, heads=3, seqlen=1000):
    return masks.build("uniform_block_sparse", seqlen, block=block, kept=0.4, heads=heads, seed=block + heads)


def variable(heads=3):
    bounds = (0, 3, 64, 130, 131, 400, 512, 777, 1000)
    return masks.build("variable_block_sparse", 1000, boundaries=bounds, kept=0.4, heads=heads, seed=heads)


MASKS = {
    **{f"blocks of {block}": uniform(block) for block in BLOCKS},
    "shared": uniform(64, heads=1),
    "a mask a query head": uniform(128, heads=6),
    "variable": variable(),
    "variable, shared": variable(heads=1),
    "more keys than queries": BlockSparseMask(np.eye(3, 9, dtype=np.bool_), range(0, 181, 60), range(0, 541, 60)),
    "nothing": BlockSparseMask(np.zeros((2, 5, 5), np.bool_), range(0, 641, 128), range(0, 641, 128)),
}


def dense(mask):
    """[query heads, queries, keys]."""
    seen = mask.dense().reshape(mask.heads, mask.seqlen_q, mask.seqlen_k)
    return seen.repeat(HEADS_Q // mask.heads, axis=0)


def of_tiles(seen, tile):
    """Visibility of each tile, [heads, tiles, tiles]: 0 is none, 1 is partly, 2 is fully."""
    size = [-(-length // tile) for length in seen.shape[1:]]
    shown = np.zeros((len(seen), *size), np.int8)
    for head, row, column in np.ndindex(*shown.shape):
        part = seen[head, row * tile : (row + 1) * tile, column * tile : (column + 1) * tile]
        shown[head, row, column] = int(part.any()) + int(part.all())
    return shown


def spelled_out(lists, shape):
    shown = np.zeros(shape, np.int8)
    for value, counts, columns in ((1, lists.num_partial, lists.partial), (2, lists.num_full, lists.full)):
        for head, row in np.ndindex(*shape[:2]):
            at = head if counts.shape[1] > 1 else 0
            listed = columns[0, at, row, : counts[0, at, row]].numpy()
            assert len(set(listed)) == len(listed)
            shown[head, row, listed] = value
    return shown


@pytest.mark.parametrize(("block", "tile"), BLOCKS.items())
def test_tiles_are_large_where_blocks_are_whole_ones(block, tile):
    assert tile_size(uniform(block)) == tile
    assert tile_size(variable()) == 64


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_lists_show_the_tiles_of_each_query_head(name, by_key):
    mask = MASKS[name]
    expected = of_tiles(dense(mask), tile_size(mask))
    expected = expected.swapaxes(1, 2) if by_key else expected
    lists = tile_side_lists(mask, HEADS_Q, CPU, by_key=by_key)
    assert lists.full.shape[1] == (1 if mask.heads == 1 else HEADS_Q)
    assert np.array_equal(spelled_out(lists, expected.shape), expected)
    assert all(x.dtype == torch.int32 and x.is_contiguous() for x in lists)
    assert lists.partial.stride() == lists.full.stride()
    assert min(lists.full.shape[2:]) >= 2
    assert lists.full.numel() <= max(
        Size.TILES.of(Problem(mask=mask, heads_q=HEADS_Q, heads_kv=mask.heads, device=Device("cpu"))), 2 * 2 * HEADS_Q
    )


@pytest.mark.parametrize("block", [64, 128, 192])
def test_whole_blocks_are_never_masked_and_take_memory_once(block):
    lists = tile_side_lists(uniform(block), HEADS_Q, CPU, by_key=False)
    assert not lists.num_partial.any()
    assert lists.partial.data_ptr() == lists.full.data_ptr()


@pytest.mark.parametrize("name", MASKS)
def test_bits_say_what_a_query_sees(name):
    mask = MASKS[name]
    kept = kept_bits(mask, HEADS_Q, CPU)
    head, query, key = (torch.arange(n) for n in (HEADS_Q, mask.seqlen_q, mask.seqlen_k))
    seen = is_visible(head[:, None, None], query[:, None], key, kept)
    assert np.array_equal(seen.numpy(), dense(mask))
    assert len(kept.bits) >= 2
