"""The memory functions of cudnn_flex, against sums by hand from the library's shapes."""

import pytest

from longca import Device, Problem, masks
from longca.masks import Form
from longca_cudnn.flex.memory import plan_bytes, workspace

INTERVALS = Form.ROW_INTERVALS


def problem(mask, heads=(64, 8), **fields):
    common = {"head_dim": 128, "device": Device("cuda", (9, 0)), "direction": "backward"}
    return Problem(mask=mask, heads_q=heads[0], heads_kv=heads[1], **{**common, **fields})


def test_a_backward_sums_in_float32():
    mask = masks.build("causal", 1000)
    assert workspace(problem(mask, direction="forward"), INTERVALS) == 0
    dq, sums, dkv = 64 * 1024 * 128, 2 * 64 * 1024, 2 * 8 * 1024 * 128
    assert workspace(problem(mask), INTERVALS) == 4 * (dq + sums + dkv)
    assert workspace(problem(mask, (64, 64)), INTERVALS) == 4 * (dq + sums)
    assert workspace(problem(mask, head_dim=8), INTERVALS) == 4 * (64 * 1024 * 18 + 2 * 8 * 1024 * 16)


@pytest.mark.parametrize(("heads", "queries"), [((8, 8), 128), ((8, 1), 16), ((32, 1), 4), ((6, 2), 128)])
@pytest.mark.parametrize("pattern", ["full", "causal", "global_sliding_window"])
def test_bits_of_partly_visible_tiles(pattern, heads, queries):
    """8 or 32 heads of a group share a tile of 128 rows. 3 heads do not. Tiles of over 8 heads store bits twice."""
    mask = masks.sample(pattern, 4096, seed=0)

    def tiles(rows, index, bits):
        cells = mask.dense().reshape(4096 // rows, rows, 32, 128)
        full, some = cells.all((1, 3)), cells.any((1, 3))
        return int(some.sum()) * index + int((some & ~full).sum()) * bits

    copies, rows = 2 if queries < 16 else 1, 4096 // queries
    queue = rows * (heads[0] if queries == 128 else heads[1]) * 16
    forward = tiles(queries, 4, copies * queries * 16) + rows * 16 + 8 + queue
    backward = tiles(64, 8, 1024) + 32 * 16 + 8
    assert plan_bytes(problem(mask, heads, direction="forward"), INTERVALS) == forward
    assert plan_bytes(problem(mask, heads), INTERVALS) == forward + backward


def test_masks_of_heads():
    mask = masks.build("uniform_block_sparse", 4096, block=128, kept=0.5, heads=8, seed=0)
    size = plan_bytes(problem(mask, (8, 8), direction="forward"), Form.BLOCK_SPARSE)
    lists, rows, queue = 8 * 32 * 16 * 4, 8 * 32 * 16 + 8, 32 * 8 * 16
    assert size == lists + rows + queue
    odd = masks.sample("variable_block_sparse", 4096, kept=0.5, heads=8, seed=0)
    cells = [odd.head(head).dense().reshape(32, 128, 32, 128) for head in range(8)]
    some, full = (
        sum(int(tile.sum()) for tile in found)
        for found in ([c.any((1, 3)) for c in cells], [c.all((1, 3)) for c in cells])
    )
    lists = some * 4 + (some - full) * 2048
    assert (
        plan_bytes(problem(odd, (16, 8), direction="forward"), Form.BLOCK_SPARSE)
        == 2 * (lists + 8 * 32 * 16 + 32 * 8 * 16) + 8
    )


def test_queries_that_see_nothing_have_a_flag():
    seen, blind = masks.build("full", 256, seqlen_k=128), masks.build("causal", 256, seqlen_k=128)
    assert plan_bytes(problem(masks.SliceMask([], 256, 128)), INTERVALS) == 0
    size = plan_bytes(problem(blind, (8, 8), direction="forward"), INTERVALS)
    rows_and_queue = 2 * 16 + 8 + 2 * 8 * 16
    assert size == 4 + 2048 + 256 + rows_and_queue
    assert plan_bytes(problem(seen, (8, 8), direction="forward"), INTERVALS) == 2 * 4 + rows_and_queue
