"""flex on a GPU: tests of the compiled kernels that the conformance suite lacks."""

from __future__ import annotations

import importlib.util

import pytest
import torch

import longca
from longca import Device, Problem, masks
from longca.manifests.devices import current_device
from longca.masks import Slice, SliceMask
from longca.testing import verify
from longca_builtin.naive import Naive
from longca_flex.flash import FlexFlash
from longca_flex.flex import Flex

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
LARGE = 48 * 2**30  # bytes of the largest test


@pytest.fixture(scope="module")
def kernel():
    return Flex()


@pytest.mark.parametrize("seqlen", [1024, 1100])
@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize("block", [16, 64, 100, 128, 256])
@pytest.mark.parametrize("mask_heads", [1, 2, 8])
def test_uniform_blocks(kernel, block, mask_heads, head_dim, seqlen):
    mask = masks.build("uniform_block_sparse", seqlen, block=block, kept=0.3, heads=mask_heads, seed=block)
    verify(kernel, mask, heads=(8, 2), dtype="bfloat16", head_dim=head_dim)


def test_eight_intervals_a_row(kernel):
    slices = [Slice(0, 1000, 200 * i, 200 * i + 90) for i in range(8)]
    verify(kernel, SliceMask(slices, 1000, 1600), dtype="bfloat16", head_dim=64)


def test_offsets_beyond_32_bits(kernel):
    device = current_device()
    if (device.memory or 0) < LARGE:
        pytest.skip(f"takes {LARGE >> 30} GiB of memory; this device has {(device.memory or 0) >> 30}")
    seqlen, heads, dim, last = 2**18 + 256, 64, 128, 256
    documents = [128] * (seqlen // 128 - 2) + [last]
    q, dout = (torch.randn(seqlen, heads, dim, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    k, v = (torch.randn(seqlen, 8, dim, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    assert q.numel() > 2**31
    results = _both_ways(kernel, masks.build("causal_document", seqlen, documents=documents), device, dout, q, k, v)
    tail = [x[-last:].clone() for x in (dout, q, k, v)]
    expected = _both_ways(Naive(), masks.build("causal", last), device, *(x.float() for x in tail))
    for result, wanted in zip(results, expected, strict=True):
        assert (result[-last:].float() - wanted).norm() < 0.01 * wanted.norm()


@pytest.fixture(scope="module")
def flash():
    if importlib.util.find_spec("flash_attn") is None:
        pytest.skip("flash-attn-4 is not installed")
    return FlexFlash()


def _both_ways(kernel, mask, device: Device, dout, q, k, v):
    """out, dq, dk and dv."""
    dtype = str(q.dtype).removeprefix("torch.")
    asked = Problem(mask=mask, heads_q=64, heads_kv=8, head_dim=128, dtype=dtype, device=device, direction="backward")
    plan = kernel.plan(asked)
    out, lse = kernel.forward(q, k, v, plan)
    return out, *kernel.backward(dout, q, k, v, out, lse, plan)


def test_a_plan_of_a_side_stream_is_right_on_another_stream():
    ask = {"heads": (4, 2), "head_dim": 64, "dtype": torch.bfloat16, "device": "cuda", "kernel": "flex"}
    x = {heads: torch.randn(1024, heads, 64, dtype=torch.bfloat16, device="cuda") for heads in (4, 2)}
    user = torch.cuda.Stream()
    for seed in range(200):  # more than the cache holds, so that plans are dropped and their memory is reused
        mask = masks.sample("causal_document", 1024, lengths="auto", seed=seed)
        handle = longca.prefetch(mask, training=False, **ask)
        with torch.cuda.stream(user):
            out = longca.attention(x[4], x[2], x[2], mask, kernel="flex")
        expected = longca.attention(x[4], x[2], x[2], mask, kernel="sdpa")
        user.synchronize()
        assert handle.done()
        torch.testing.assert_close(out, expected, atol=2e-2, rtol=2e-2)
