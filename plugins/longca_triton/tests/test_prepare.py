"""The launch of `prepare`: its grid, and the queries past the last one that its results have."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from longca.masks import Form, SliceMask
from longca_triton import prepare
from longca_triton.checking import cpu_problem
from longca_triton.config import Config, Configs
from longca_triton.kernel import FlashPlan


class Recorded:
    """Takes the place of a kernel, and notes how it is launched."""

    def __getitem__(self, grid):
        self.grid = grid
        return self

    def __call__(self, *arguments, **constants):
        self.arguments, self.constants = arguments, constants


@pytest.mark.parametrize(
    ("head_dim", "queries", "block", "padded", "grid"),
    [
        (64, 300, 32, 384, (3, 6)),
        (128, 300, 32, 320, (5, 6)),
        (128, 300, 64, 320, (5, 6)),
        (128, 300, 128, 384, (6, 6)),
        (256, 256, 256, 256, (8, 6)),
        (256, 0, 128, 0, (0, 6)),
    ],
)
def test_whole_blocks(head_dim, queries, block, padded, grid, monkeypatch):
    kernel, out = Recorded(), torch.zeros(queries, 6, head_dim)
    monkeypatch.setattr(prepare, "prepare", kernel)
    dout, lse = torch.zeros(queries, 12, head_dim)[:, ::2], torch.zeros(queries, 6).T
    problem = cpu_problem(SliceMask([], queries, 9), 6, 6, head_dim)
    config = Config(block, 32, 4, 2)
    plan = FlashPlan(problem, Form.DENSE, "triton", Configs(config, config, Config(16, 32, 4, 2)))
    prepared = prepare.launch_prepare(dout, out, lse, plan)
    assert prepared.shape == (2, 6, padded)
    assert prepared.dtype is torch.float32
    assert kernel.grid == grid
    assert kernel.constants["BLOCK"] * grid[0] == padded
    assert kernel.arguments[0] is out
    assert kernel.arguments[1] is dout
    assert [x.data_ptr() for x in kernel.arguments[3:5]] == [x.data_ptr() for x in prepared]
    assert kernel.arguments[5:] == (6 * head_dim, head_dim, 12 * head_dim, 2 * head_dim, 1, 6, queries, padded)
