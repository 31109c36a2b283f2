"""The memory functions of cudnn_bsa: plans are compared with real plans, workspaces with sums by hand."""

import numpy as np
import pytest

from longca import Device, Problem, masks
from longca.masks import BlockSparseMask, Form
from longca_cudnn.bsa.kernel import CuDNNBlockSparse
from longca_cudnn.bsa.memory import plan_bytes, workspace

SPARSE = Form.BLOCK_SPARSE


def problem(mask, heads=(8, 8), **fields):
    common = {"head_dim": 128, "device": Device("cpu"), "direction": "backward"}
    return Problem(mask=mask, heads_q=heads[0], heads_kv=heads[1], **{**common, **fields})


def uniform(block, seqlen=1103, heads=8):
    return masks.build("uniform_block_sparse", seqlen, block=block, kept=0.5, heads=heads, seed=0)


EMPTY = BlockSparseMask(np.zeros((8, 1, 1), np.bool_), [0, 5], [0, 5])
BLIND = BlockSparseMask(np.eye(3, 2, dtype=np.bool_), [0, 64, 128, 203], [0, 64, 128])


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("mask", [uniform(64), uniform(128, heads=1), uniform(80), uniform(192), EMPTY, BLIND])
def test_plans(mask, direction):
    asked = problem(mask, direction=direction)
    assert plan_bytes(asked, SPARSE) == CuDNNBlockSparse().plan(asked).metadata_bytes


def test_a_backward_sums_in_float32_and_turns_the_lists():
    asked = problem(uniform(64, 1024))
    rows = 8 * 1024 * 128
    sums, lists = 4 * (3 * rows + 2 * 8 * 1024), 4 * 8 * 16 * 8
    assert workspace(asked, SPARSE) == sums + lists
    assert workspace(problem(uniform(64, 1024), direction="forward"), SPARSE) == 0


def test_padded_copies():
    tokens = 13 * 128 + 64  # 13 blocks of 80 in two tiles of 64 each, and 63 tokens
    padded, number = 2 * 8 * tokens * 128, 4 * 8 * tokens
    assert workspace(problem(uniform(80), direction="forward"), SPARSE) == 4 * padded + number
    short = 2 * 8 * 1152 * 128  # only the last tile of queries is padded
    assert workspace(problem(uniform(64), direction="forward"), SPARSE) == 2 * short + 4 * 8 * 1152
    assert workspace(problem(uniform(128), direction="forward"), SPARSE) == 0
    assert workspace(problem(EMPTY), SPARSE) == 0


def test_gradients_without_padding_come_after_the_sums():
    tokens, asked = 13 * 128 + 64, problem(uniform(80))
    padded, number = 2 * 8 * tokens * 128, 4 * 8 * tokens
    sums, results = 3 * 2 * padded + 2 * number, 3 * 2 * 8 * 1103 * 128
    lists = workspace(asked, SPARSE) - (8 * padded + 2 * number + sums - results)
    assert lists == 4 * 8 * (tokens // 64) * 16
