"""The launch of `prepare`: its grid, and how far its results reach past the last query."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from longca_triton.prepare import run_prepare


class Recorded:
    """Takes the place of a kernel, and notes how it is launched."""

    def __getitem__(self, grid):
        self.grid = grid
        return self

    def __call__(self, *arguments, **constants):
        self.arguments, self.constants = arguments, constants


@pytest.mark.parametrize(
    ("head_dim", "queries", "multiple", "padded", "grid"),
    [
        (64, 300, 1, 384, (3, 6)),
        (128, 300, 1, 320, (5, 6)),
        (128, 300, 64, 320, (5, 6)),
        (128, 300, 128, 384, (6, 6)),
        (256, 256, 256, 256, (8, 6)),
        (256, 0, 128, 0, (0, 6)),
    ],
)
def test_whole_blocks(head_dim, queries, multiple, padded, grid):
    kernel, out = Recorded(), torch.zeros(queries, 6, head_dim)
    dout, lse = torch.zeros(queries, 12, head_dim)[:, ::2], torch.zeros(queries, 6).T
    prepared = run_prepare(kernel, dout, out, lse, multiple)
    assert prepared.shape == (2, 6, padded)
    assert prepared.dtype is torch.float32
    assert kernel.grid == grid
    assert kernel.constants["BLOCK"] * grid[0] == padded
    assert kernel.arguments[0] is out
    assert kernel.arguments[1] is dout
    assert [x.data_ptr() for x in kernel.arguments[3:5]] == [x.data_ptr() for x in prepared]
    assert kernel.arguments[5:] == (6 * head_dim, head_dim, 12 * head_dim, 2 * head_dim, 1, 6, queries, padded)
