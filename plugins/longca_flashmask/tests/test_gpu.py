"""flashmask on a GPU: the compiled kernels, beyond the conformance suite."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from longca import Problem, masks
from longca.manifests.devices import current_device
from longca.masks import Slice, SliceMask
from longca.testing import verify
from longca_flashmask.configs import choose
from longca_flashmask.flashmask import FlashMask
from longca_triton.config import Configs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
LARGE = 48 * 2**30  # bytes that the largest test takes

COMB = SliceMask([Slice(200 * q, 200 * q + 90, 200 * k, 200 * k + 90) for k in range(8) for q in range(5)], 1000, 1600)


def by_pointers(head_dim):
    """The configurations in use, without descriptors."""
    configs = choose(head_dim, current_device().capability)
    return Configs(*(replace(config, tma=False) for config in (configs.forward, configs.dkdv, configs.dq)))


@pytest.mark.parametrize("seqlen", [1024, 1100])
@pytest.mark.parametrize("pattern", [p for p in masks.PATTERNS if not p.endswith("block_sparse")])
def test_every_static_pattern(pattern, seqlen):
    verify(
        FlashMask(), masks.sample(pattern, seqlen, lengths="pile", seed=3), dtype="bfloat16", head_dim=128, heads=(8, 1)
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("mask", [COMB, masks.build("shared_question", seqlen=1000, documents=[300, 400, 300])])
def test_pointers_and_descriptors(mask, head_dim, dtype):
    verify(FlashMask(), mask, dtype=dtype, head_dim=head_dim)
    verify(FlashMask(by_pointers(head_dim)), mask, dtype=dtype, head_dim=head_dim)


def problem(mask, heads_q=4, heads_kv=2, head_dim=128):
    return Problem(
        mask=mask,
        heads_q=heads_q,
        heads_kv=heads_kv,
        head_dim=head_dim,
        device=current_device(),
        direction="backward",
    )


def test_strides_change_nothing():
    kernel, asked = FlashMask(), problem(masks.build("causal_document", seqlen=700, documents=[300, 400]))
    plan = kernel.plan(asked)
    torch.manual_seed(0)
    fused = torch.randn(700, 8, 128, device="cuda", dtype=torch.bfloat16)  # q, k and v of one projection, side by side
    dout = torch.randn(700, 4, 128, device="cuda", dtype=torch.bfloat16)
    q, k, v = fused.split([4, 2, 2], dim=1)

    def both_ways(*tensors):
        q, k, v, dout = tensors
        out, lse = kernel.forward(q, k, v, plan)
        return out, lse, *kernel.backward(dout, q, k, v, out, lse, plan)

    expected = both_ways(*(x.contiguous() for x in (q, k, v, dout)))
    by_head = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k, v, dout)]
    for tensors in ((q, k, v, dout), by_head):
        for result, value in zip(both_ways(*tensors), expected, strict=True):
            torch.testing.assert_close(result, value, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("use_pointers", [False, True], ids=["descriptors", "pointers"])
def test_offsets_past_32_bits(use_pointers):
    if torch.cuda.mem_get_info()[1] < LARGE:
        pytest.skip(f"needs a GPU of {LARGE / 2**30:.0f} GiB")
    document, documents = 1024, 260
    seqlen = document * documents
    assert seqlen * 64 * 128 > 2**31
    kernel = FlashMask(by_pointers(128) if use_pointers else None)
    asked = problem(masks.build("causal_document", seqlen=seqlen, documents=[document] * documents), 64, 8)
    alone = problem(masks.build("causal", seqlen=document), 64, 8)
    torch.manual_seed(0)
    q, dout = (torch.randn(seqlen, 64, 128, device="cuda", dtype=torch.bfloat16) for _ in "qo")
    k, v = (torch.randn(seqlen, 8, 128, device="cuda", dtype=torch.bfloat16) for _ in "kv")

    def both_ways(asked, q, k, v, dout):
        plan = kernel.plan(asked)
        out, lse = kernel.forward(q, k, v, plan)
        return out, lse.T, *kernel.backward(dout, q, k, v, out, lse, plan)

    results = both_ways(asked, q, k, v, dout)
    last = slice(seqlen - document, seqlen)
    for result, value in zip(results, both_ways(alone, *(x[last] for x in (q, k, v, dout))), strict=True):
        torch.testing.assert_close(result[last], value, rtol=2e-2, atol=2e-2)
