"""The manifests' formulas of memory, compared with plans and with sums by hand."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from longca import Device, Problem, masks
from longca.masks import BlockSparseMask, Form
from longca_triton.config import Config, Configs
from longca_vsa.bsa.configs import FromScores
from longca_vsa.bsa.plan import make_plan
from longca_vsa.fa2_sparse import FA2Sparse
from longca_vsa.memory import (
    bsa_plan,
    bsa_plan_of,
    bsa_workspace,
    bsa_workspace_of,
    fa2_sparse_plan,
    fa2_sparse_workspace,
    fastvideo_plan,
    vsa_triton_workspace,
    vsa_workspace,
)
from longca_vsa.vsa_triton import VideoSparseAttentionTriton

DIRECTIONS = ("forward", "backward")
MIB = 2**20


def problem(mask, direction="backward", heads=(8, 8)):
    return Problem(mask=mask, heads_q=heads[0], heads_kv=heads[1], device=Device("cpu"), direction=direction)


def uniform(block, heads=8, seqlen=1100):
    return masks.build("uniform_block_sparse", seqlen, block=block, kept=0.4, heads=heads, seed=1)


def variable(heads=8):
    bounds = (0, 3, 64, 65, 130, 700, 1100)
    return masks.build("variable_block_sparse", 1100, boundaries=bounds, kept=0.4, heads=heads, seed=1)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kv", [2, 8])
@pytest.mark.parametrize("mask", [uniform(16), uniform(32), uniform(64), uniform(128), uniform(48, 1), variable()])
def test_lists_of_bsa(mask, kv, direction):
    asked = problem(mask, direction, (8, kv))
    assert bsa_plan(asked, Form.BLOCK_SPARSE) == make_plan(asked).metadata_bytes


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    "mask", [uniform(64), uniform(64, 1), BlockSparseMask(np.eye(3, dtype=bool), *[range(0, 193, 64)] * 2)]
)
def test_lists_of_fastvideo(mask, direction):
    asked = problem(mask, direction)
    assert fastvideo_plan(asked, Form.BLOCK_SPARSE) == VideoSparseAttentionTriton().plan(asked).metadata_bytes


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_lists_of_fa2_sparse(direction):
    asked = problem(uniform(128), direction)
    assert fa2_sparse_plan(asked, Form.BLOCK_SPARSE) == FA2Sparse().plan(asked).metadata_bytes


def test_bsa_sums_in_float32_where_a_group_is_too_large_for_the_cache():
    short, long = (problem(uniform(64, 1, seqlen), heads=(8, 1)) for seqlen in (4096, 16384))
    assert bsa_workspace(short, Form.BLOCK_SPARSE) == 2 * 4 * 8 * 4096
    assert bsa_workspace(long, Form.BLOCK_SPARSE) == 2 * 4 * 8 * 16384 + 2 * 16384 * 128 * 4


STORED = Configs(
    Config(128, 64, 4, 2), Config(64, 64, 4, 2), FromScores(128, 64, 4, 3, store=2**20, cache=2**19, streams=2)
)


@pytest.mark.parametrize(("kv", "mask_heads"), [(2, 1), (2, 2), (8, 8)])
@pytest.mark.parametrize("make", [partial(uniform, 64, seqlen=4096), partial(uniform, 48), variable])
def test_parts_of_bsa_that_store_gradients(make, mask_heads, kv):
    mask = make(heads=mask_heads)
    asked = problem(mask, heads=(8, kv))
    made = make_plan(asked, STORED)
    assert bsa_plan_of(asked, STORED) == pytest.approx(made.metadata_bytes, rel=0.1)
    stored = max(each.plan.score_rows for each in made.ranges) * made.cut.heads * 64 * 2
    workspace = bsa_workspace_of(asked, STORED)
    assert 2 * stored < workspace < 4 * stored + 4 * 2 * mask.seqlen_k * kv * 128 * 4


def test_copies_of_fastvideo():
    forward, backward = (problem(uniform(64, 1, 4096), direction) for direction in DIRECTIONS)
    q, lse = 8 * MIB, MIB // 8
    assert vsa_workspace(forward, Form.BLOCK_SPARSE) == 3 * q
    assert vsa_workspace(backward, Form.BLOCK_SPARSE) == 8 * q + 2 * lse
    assert vsa_triton_workspace(forward, Form.BLOCK_SPARSE) == lse
    assert vsa_triton_workspace(backward, Form.BLOCK_SPARSE) == 6 * q + 2 * lse


def test_only_a_backward_of_bsa_and_of_fa2_sparse_takes_anything():
    forward = problem(uniform(128), "forward")
    assert bsa_workspace(forward, Form.BLOCK_SPARSE) == 0
    assert fa2_sparse_workspace(forward, Form.BLOCK_SPARSE) == 0
    assert fa2_sparse_workspace(problem(uniform(128)), Form.BLOCK_SPARSE) > 2 * 1100 * 8 * 128 * 2
