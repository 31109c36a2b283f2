"""The places of stored gradients: each query block's entries name the rows that the steps of its keys write."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import longca
from longca.masks import BlockSparseMask
from longca_triton.config import Config, Configs
from longca_vsa.bsa.configs import FromScores
from longca_vsa.bsa.plan import make_plan

BLOCK_M, BLOCK_N = 32, 16
CONFIGS = Configs(
    Config(64, 64, 4, 2), Config(BLOCK_M, BLOCK_N, 4, 2), FromScores(64, BLOCK_N, 4, 2, store=2**20, cache=2**30)
)
BOUNDS = {"blocks of 16": np.r_[0:100:16, 100], "blocks of 64": np.r_[0:200:64, 200], "unequal": [0, 3, 40, 41, 90, 97]}


def written(mask, head, tile_rows, key):
    """The query of each row that a tile of keys writes, by row. Steps go on from the begin of each run of queries."""
    sees = mask.dense().reshape(mask.heads, mask.seqlen_q, mask.seqlen_k)[head, :, key]
    edges = np.flatnonzero(np.diff(np.r_[0, sees.astype(int), 0])).reshape(-1, 2)
    rows, at = {}, tile_rows
    for start, stop in edges:
        rows |= {at + q - start: q for q in range(start, stop)}
        at += -(-(stop - start) // BLOCK_M) * BLOCK_M
    return rows, at


@pytest.mark.parametrize("mask_heads", [1, 4])
@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
def test_entries_name_the_rows_that_their_keys_write(bounds, mask_heads):
    blocks = len(bounds) - 1
    kept = np.random.default_rng(blocks).random((mask_heads, blocks, blocks)) < 0.5
    kept[0, 1], kept[0, :, 2] = False, False
    mask = BlockSparseMask(kept, bounds, bounds)
    problem = longca.Problem(
        mask=mask, heads_q=8, heads_kv=4, head_dim=64, device=longca.Device("cpu"), direction="backward"
    )
    made = make_plan(problem, CONFIGS)
    (plan,) = (each.plan for each in made.ranges)
    scores, widest, at = plan.scores, 0, 0
    tiles = plan.tiles["dkdv"].table.tolist()
    for head_kv, first_rows in enumerate(scores.first_rows.tolist()):
        head = head_kv % mask_heads
        at = 0 if head_kv % made.cut.heads_kv == 0 else at
        assert int(scores.head_rows[head_kv]) == at
        found = {}
        for (first, _, row, _), first_row in zip(tiles, first_rows, strict=True):
            assert first_row == at
            rows, at = written(mask, head, at, first + row)
            found |= {(first + row, query): place for place, query in rows.items()}
        named = {}
        for block, (start, stop) in enumerate(pairwise(bounds)):
            begin, end = scores.offsets[head * blocks + block :][:2].tolist()
            for key, row in scores.entries[begin:end].tolist():
                named |= {(key, q): int(scores.head_rows[head_kv]) + row + q - start for q in range(start, stop)}
        assert named == found
        widest = max(widest, at)
    assert widest == scores.rows


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("mask_heads", [1, 4])
@pytest.mark.parametrize(("store", "cache"), [(2**30, 2**30), (2**18, 2**30), (2**30, 2**15), (2**12, 2**30), (1, 1)])
def test_parts_have_each_query_of_each_head_once(mask_heads, store, cache, streams):
    bounds = np.r_[0:1000:16, 1000]
    mask = BlockSparseMask(np.random.default_rng(0).random((mask_heads, 63, 63)) < 0.5, bounds, bounds)
    problem = longca.Problem(mask=mask, heads_q=16, heads_kv=4, device=longca.Device("cpu"), direction="backward")
    config = FromScores(64, BLOCK_N, 4, 2, store=store, cache=cache, streams=streams)
    made = make_plan(problem, Configs(CONFIGS.forward, CONFIGS.dkdv, config))
    cut, queries = made.cut, [each.queries for each in made.ranges]
    assert [queries[0].start, *(each.stop for each in queries)] == [*(each.start for each in queries), 1000]
    assert cut.heads == 4, "a block of 16 queries fills a tile of 64 rows under the heads of a group"
    if (store, cache) == (2**30, 2**30):
        assert cut.heads_kv == 4 // streams
    assert (len(queries) > 1) == (store <= 2**18 or cache <= 2**15)
    assert cut.has_sums(4) == (len(queries) > 1)
    widest = max(each.plan.scores.rows * each.plan.packed * BLOCK_N * 2 for each in made.ranges)
    fullest_block = 4 * 16 * 1008 * 2 * 2  # a block's queries under a group, with a whole row's and a step's rows
    assert widest <= store * 2 + cut.heads_kv * fullest_block


def test_nothing_is_stored_under_a_mask_of_each_query_head():
    mask = BlockSparseMask(np.ones((4, 2, 2), bool), [0, 16, 32], [0, 16, 32])
    problem = longca.Problem(mask=mask, heads_q=4, heads_kv=2, device=longca.Device("cpu"), direction="backward")
    plan = make_plan(problem, CONFIGS)
    assert not plan.ranges
    assert set(plan.tiles) == {"forward", "dkdv", "dq"}
