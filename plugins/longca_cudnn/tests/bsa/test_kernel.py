"""The adapter on a fake of cudnn.block_sparse_attention: the arguments that it passes, and the results."""

from __future__ import annotations

import pytest
import torch

from longca import Device, Problem, masks
from longca.masks import BlockSparseMask, Form
from longca.testing import verify
from longca_bench.conformance.masks import long_blocks, small_masks, sparse_rows, uneven
from longca_bench.verification.inputs import draw_inputs
from longca_cudnn.bsa import kernel as module
from longca_cudnn.bsa.kernel import CuDNNBlockSparse

from . import fake

MASKS = [
    (label, mask)
    for label, mask in (*small_masks(), *uneven(), *sparse_rows(), *long_blocks()[::3])
    if isinstance(mask, BlockSparseMask)
]
CPU = Device("cpu")


@pytest.fixture(autouse=True)
def _fake(monkeypatch):
    monkeypatch.setattr(module.importlib, "import_module", {"cudnn.block_sparse_attention": fake}.__getitem__)


def problem(mask, heads=(2, 2), **options):
    common = {"head_dim": 128, "dtype": "bfloat16", "device": CPU, "direction": "backward"}
    return Problem(mask=mask, heads_q=heads[0], heads_kv=heads[1], **{**common, **options})


def both_ways(kernel, asked, inputs, plan=None):
    plan = plan or kernel.plan(asked)
    out, lse = kernel.forward(inputs.q, inputs.k, inputs.v, plan)
    return out, lse, *kernel.backward(inputs.dout, inputs.q, inputs.k, inputs.v, out, lse, plan)


def assert_close(results, expected):
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result.double(), wanted.double(), rtol=2e-2, atol=2e-2)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("label", "mask"), MASKS, ids=[label for label, _ in MASKS])
def test_every_mask_of_equal_heads(label, mask):
    heads = {1: 3}.get(mask.heads, mask.heads)
    verify(CuDNNBlockSparse(), mask, dtype="bfloat16", device=CPU, heads=(heads, heads), head_dim=128)


@pytest.mark.parametrize("block", [128, 80])
def test_gradients_fill_buffers(block):
    asked = problem(masks.build("uniform_block_sparse", 203, block=block, kept=0.6, heads=2, seed=0))
    inputs, kernel = draw_inputs(asked, 0), CuDNNBlockSparse()
    expected = both_ways(kernel, asked, inputs)
    plan = kernel.plan(asked)
    wide = (torch.full((203, 2, 256), torch.nan, dtype=torch.bfloat16) for _ in range(4))
    out, dq, dk, dv = (x[..., :128] for x in wide)
    lse = torch.full((2, 203), torch.nan)
    kernel.forward(inputs.q, inputs.k, inputs.v, plan, out=out, lse=lse)
    kernel.backward(inputs.dout, inputs.q, inputs.k, inputs.v, out, lse, plan, dq=dq, dk=dk, dv=dv)
    assert_close((out, lse, dq, dk, dv), expected)


@pytest.mark.parametrize(
    ("block", "tile", "pads_q", "pads_k"),
    [
        (64, 64, True, False),
        (128, 128, False, False),
        (192, 64, True, False),
        (256, 128, False, False),
        (80, 64, True, True),
    ],
)
def test_tiles_and_padding(block, tile, pads_q, pads_k):
    plan = CuDNNBlockSparse().plan(problem(masks.build("uniform_block_sparse", 1103, block=block, kept=0.5, seed=0)))
    assert (plan.tile, plan.pad_q is not None, plan.pad_k is not None) == (tile, pads_q, pads_k)
    assert (plan.sizes is not None) == pads_k
    assert plan.form is Form.BLOCK_SPARSE
