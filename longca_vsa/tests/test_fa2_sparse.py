"""fa2_sparse on emulated functions: the arguments for block_sparse_attn, and its own results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from longca import Device, Problem
from longca.masks import BlockSparseMask
from longca.testing import verify
from longca_bench.verification.inputs import draw_inputs
from longca_builtin.naive import Naive
from longca_vsa import fa2_sparse
from longca_vsa.fa2_sparse import FA2Sparse

from .emulated import BlockSparseAttn


def blocks(seqlen, *, seqlen_k=None, heads=2, kept=0.5):
    """A random mask of blocks of 128, in which one row of each head keeps nothing and one everything."""
    bounds_q, bounds_k = (np.r_[np.arange(0, n, 128), n] for n in (seqlen, seqlen_k or seqlen))
    bitmap = np.random.default_rng(0).random((heads, len(bounds_q) - 1, len(bounds_k) - 1)) < kept
    bitmap[:, 0], bitmap[:, -1] = False, True
    return BlockSparseMask(bitmap, bounds_q, bounds_k)


MASKS = {
    "one mask for all heads": blocks(384, heads=1),
    "a mask for each KV head": blocks(400),
    "a mask for each query head": blocks(400, heads=8),
    "fewer queries": blocks(200, seqlen_k=515),
    "more queries": blocks(515, seqlen_k=200),
    "nothing": BlockSparseMask(np.zeros((2, 2, 2)), [0, 128, 203], [0, 128, 203]),
    "a key block that nothing sees": BlockSparseMask(np.tile([False, True], (2, 2, 1)), [0, 128, 203], [0, 128, 203]),
}


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    """Emulated functions in place of the package's."""
    found = BlockSparseAttn()
    monkeypatch.setattr(fa2_sparse, "_operators", lambda: found)
    return found


def problem(mask, **options):
    common = {"heads_q": 8, "heads_kv": 2, "head_dim": 32, "dtype": "float64", "device": Device("cpu")}
    return Problem(mask=mask, **{**common, "direction": "backward", **options})


def both_ways(kernel, asked, inputs, **buffers):
    plan = kernel.plan(asked)
    out, lse = kernel.forward(inputs.q, inputs.k, inputs.v, plan)
    return out, lse, *kernel.backward(inputs.dout, inputs.q, inputs.k, inputs.v, out, lse, plan, **buffers)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_every_mask_it_takes(mask):
    verify(FA2Sparse(), mask, device=Device("cpu"), heads=(8, 2), head_dim=32)


def test_rows_that_no_load_can_take_are_copied(emulated):
    asked = problem(MASKS["a mask for each KV head"])
    inputs = draw_inputs(asked, 0)
    odd = torch.zeros(*inputs.q.shape[:2], 33, dtype=torch.float64)[..., :32].copy_(inputs.q)
    packed = torch.cat([inputs.k, inputs.v], 1)
    k, v = packed.split(2, 1)
    strided = replace(inputs, q=odd, k=k, v=v)
    for result, wanted in zip(both_ways(FA2Sparse(), asked, strided), both_ways(Naive(), asked, inputs), strict=True):
        torch.testing.assert_close(result.double(), wanted.double(), rtol=1e-4, atol=1e-5)
    (q, taken), *_ = emulated.calls
    assert q.is_contiguous()
    assert taken.data_ptr() == packed.data_ptr()
