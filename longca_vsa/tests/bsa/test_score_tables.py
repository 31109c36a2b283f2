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


@pytest.mark.parametrize(("mask_heads", "packed"), [(1, 2), (2, 2), (4, 1)])
@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
def test_entries_name_the_rows_that_their_keys_write(bounds, mask_heads, packed):
    blocks = len(bounds) - 1
    kept = np.random.default_rng(blocks).random((mask_heads, blocks, blocks)) < 0.5
    kept[0, 1], kept[0, :, 2] = False, False
    mask = BlockSparseMask(kept, bounds, bounds)
    problem = longca.Problem(
        mask=mask, heads_q=4, heads_kv=2, head_dim=64, device=longca.Device("cpu"), direction="backward"
    )
    (part,) = make_plan(problem, CONFIGS).parts
    plan, scores = part.plan, part.plan.scores
    assert plan.packed == packed
    tiles = plan.tiles["dkdv"].table.tolist()
    for group, first_rows in enumerate(scores.first_rows.tolist()):
        head, at = group * packed // plan.heads_a_mask, int(scores.group_rows[group])
        found = {}
        for (first, _, row, _), first_row in zip(tiles, first_rows, strict=True):
            assert first_row == at
            rows, at = written(mask, head, at, first + row)
            found |= {(first + row, query): place for place, query in rows.items()}
        named = {}
        for block, (start, stop) in enumerate(pairwise(bounds)):
            begin, end = scores.offsets[head * blocks + block :][:2].tolist()
            for key, row in scores.entries[begin:end].tolist():
                named |= {(key, q): int(scores.group_rows[group]) + row + q - start for q in range(start, stop)}
        assert named == found
    assert at == scores.rows


@pytest.mark.parametrize("mask_heads", [1, 2, 4])
@pytest.mark.parametrize(("store", "cache"), [(2**30, 2**30), (2**14, 2**30), (2**16, 2**30), (2**30, 2**14), (1, 1)])
def test_parts_have_each_query_block_of_each_head_once(mask_heads, store, cache):
    bounds = np.r_[0:1000:16, 1000]
    mask = BlockSparseMask(np.random.default_rng(0).random((mask_heads, 63, 63)) < 0.5, bounds, bounds)
    problem = longca.Problem(mask=mask, heads_q=4, heads_kv=2, device=longca.Device("cpu"), direction="backward")
    config = FromScores(64, BLOCK_N, 4, 2, store=store, cache=cache)
    parts = make_plan(problem, Configs(CONFIGS.forward, CONFIGS.dkdv, config)).parts
    taken = np.zeros((2, 1000), int)
    for part in parts:
        taken[part.heads, part.queries] += 1
    assert (taken == 1).all()
    for one, following in pairwise(parts):
        assert following.queries.start in (0, one.queries.stop)
    assert (len(parts) == 1) == (min(store, cache) == 2**30)
    widest = max(part.plan.scores.rows * part.plan.packed * BLOCK_N * 2 for part in parts)
    fullest_block = (
        2 * 16 * 1008 * 2 * 2
    )  # the queries of a block under two heads, with a whole row's and a step's rows
    assert widest <= store * 2 + 2 * fullest_block
