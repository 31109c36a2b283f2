"""vsa and vsa_triton on emulated functions: the arguments for fastvideo-kernel, and their own results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from longca import Device, Problem
from longca.masks import BlockSparseMask
from longca.parallel.merge import merge
from longca.testing import verify
from longca_bench.verification.inputs import draw_inputs
from longca_builtin.naive import Naive
from longca_vsa import vsa, vsa_triton
from longca_vsa.vsa import VideoSparseAttention
from longca_vsa.vsa_triton import VideoSparseAttentionTriton

from .emulated import FastVideo

KERNELS = (VideoSparseAttention, VideoSparseAttentionTriton)


def blocks(seqlen, *, seqlen_k=None, heads=3, kept=0.5, seed=0):
    """A random mask of blocks of 64, in which one row of each head keeps nothing and one everything."""
    bounds_q, bounds_k = (np.r_[np.arange(0, n, 64), n] for n in (seqlen, seqlen_k or seqlen))
    bitmap = np.random.default_rng(seed).random((heads, len(bounds_q) - 1, len(bounds_k) - 1)) < kept
    bitmap[:, 0], bitmap[:, -1] = False, True
    return BlockSparseMask(bitmap, bounds_q, bounds_k)


MASKS = {
    "whole blocks": blocks(256),
    "a short last block": blocks(203),
    "one token over": blocks(257),
    "one mask for all heads": blocks(203, heads=1),
    "fewer queries": blocks(77, seqlen_k=203),
    "more queries": blocks(203, seqlen_k=77),
    "one block": BlockSparseMask(np.ones((3, 1, 1)), [0, 64], [0, 64]),
    "everything": BlockSparseMask(np.ones((1, 4, 4)), [0, 64, 128, 192, 203], [0, 64, 128, 192, 203]),
    "nothing": BlockSparseMask(np.zeros((3, 4, 4)), [0, 64, 128, 192, 203], [0, 64, 128, 192, 203]),
    "a key block that nothing sees": BlockSparseMask(
        np.tile([True, False, True, True], (3, 4, 1)), [0, 64, 128, 192, 203], [0, 64, 128, 192, 203]
    ),
}


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    """Emulated functions in place of fastvideo-kernel's."""
    found = FastVideo()
    for module in (vsa, vsa_triton):
        monkeypatch.setattr(module, "library", found.library)
    return found


def problem(mask, **options):
    common = {"heads_q": 3, "head_dim": 64, "dtype": "float64", "device": Device("cpu"), "direction": "backward"}
    return Problem(mask=mask, **{**common, **options})


def both_ways(kernel, asked, inputs, plan=None):
    """out and lse, and the gradients where the kernel has a backward."""
    plan = plan or kernel.plan(asked)
    out, lse = kernel.forward(inputs.q, inputs.k, inputs.v, plan)
    if isinstance(kernel, VideoSparseAttentionTriton):
        return out, lse
    return out, lse, *kernel.backward(inputs.dout, inputs.q, inputs.k, inputs.v, out, lse, plan)


def assert_close(results, expected):
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result.double(), wanted.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_mask_it_takes(kernel, mask, head_dim):
    direction = "forward" if kernel is VideoSparseAttentionTriton else "backward"
    verify(kernel(), mask, device=Device("cpu"), heads=(3, 3), head_dim=head_dim, direction=direction)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("seqlen", [192, 203])
def test_strided_inputs_and_buffers(kernel, seqlen):
    asked = problem(blocks(seqlen))
    inputs = draw_inputs(asked, 0)
    packed = torch.cat([inputs.q, inputs.k, inputs.v], 1)
    q, k, v = packed.split(3, 1)
    strided = replace(inputs, q=q, k=k.mT.contiguous().mT, v=v, dout=inputs.dout.mT.contiguous().mT)
    plan = kernel().plan(asked)
    found = both_ways(kernel(), asked, strided, plan)
    expected = both_ways(Naive(), asked, inputs)[: len(found)]
    assert_close(found, expected)
    out, lse, *grads = (
        torch.full((*x.shape[:-1], 2 * x.shape[-1]), torch.nan, dtype=x.dtype)[..., ::2] for x in expected
    )
    results = kernel().forward(q, k, v, plan, out=out, lse=lse)
    names = dict(zip(("dq", "dk", "dv"), grads, strict=False))
    if grads:
        results += kernel().backward(inputs.dout, q, k, v, out, lse, plan, **names)
    assert all(result is buffer for result, buffer in zip(results, (out, lse, *grads), strict=True))
    assert_close(results, expected)


def test_the_backward_takes_the_results_of_a_larger_softmax():
    kernel = VideoSparseAttention
    whole = problem(blocks(203, seqlen_k=320, kept=0.4))
    inputs, parts = draw_inputs(whole, 0), []
    for start, stop in ((0, 128), (128, 320)):
        mask = whole.concrete_mask.cut([(0, 203)], [(start, stop)])
        asked = problem(mask)
        parts.append((slice(start, stop), kernel().plan(asked)))
    results = [kernel().forward(inputs.q, inputs.k[keys], inputs.v[keys], plan) for keys, plan in parts]
    out, lse = merge(*((out.float(), lse) for out, lse in results))
    grads = [
        kernel().backward(inputs.dout, inputs.q, inputs.k[keys], inputs.v[keys], out.double(), lse, plan)
        for keys, plan in parts
    ]
    merged = sum(dq for dq, _, _ in grads), *(torch.cat([grad[i] for grad in grads]) for i in (1, 2))
    assert_close((out, lse, *merged), both_ways(Naive(), whole, inputs))
