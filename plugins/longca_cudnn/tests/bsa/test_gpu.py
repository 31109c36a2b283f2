"""cudnn_bsa itself: tests that the conformance suite lacks. Each kernel takes seconds to compile."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("cudnn.block_sparse_attention.api", reason="no frontend of cuDNN with open kernels is installed")

from longca import Problem, masks
from longca.manifests.devices import current_device
from longca.testing import verify
from longca_bench.verification.inputs import draw_inputs
from longca_cudnn.bsa.kernel import CuDNNBlockSparse

pytestmark = pytest.mark.gpu


def problem(mask, heads=(8, 8), **options):
    common = {"head_dim": 128, "device": current_device(), "direction": "backward"}
    return Problem(mask=mask, heads_q=heads[0], heads_kv=heads[1], **{**common, **options})


def uniform(block, seqlen=4000, heads=8, kept=0.3):
    return masks.build("uniform_block_sparse", seqlen, block=block, kept=kept, heads=heads, seed=0)


def both_ways(kernel, inputs, plan):
    out, lse = kernel.forward(inputs.q, inputs.k, inputs.v, plan)
    return out, lse, *kernel.backward(inputs.dout, inputs.q, inputs.k, inputs.v, out, lse, plan)


@pytest.mark.parametrize("block", [16, 64, 80, 128, 192, 256])
def test_blocks_of_any_size(block):
    verify(CuDNNBlockSparse(), uniform(block), dtype="bfloat16", heads=(8, 8), head_dim=128)


@pytest.mark.parametrize("block", [64, 128])
def test_slices_of_a_fused_projection_are_read_in_place(block):
    asked, kernel = problem(uniform(block, 4096)), CuDNNBlockSparse()
    plan, inputs = kernel.plan(asked), draw_inputs(asked, 0)
    expected = both_ways(kernel, inputs, plan)
    q, k, v = torch.cat([inputs.q, inputs.k, inputs.v], 1).split(8, 1)
    results = both_ways(kernel, replace(inputs, q=q, k=k, v=v), plan)
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, wanted, rtol=2e-2, atol=2e-2)


def test_masks_that_change_every_step_compile_nothing_new():
    interface = pytest.importorskip("cudnn.block_sparse_attention._interface")
    lists = pytest.importorskip("cudnn.block_sparse_attention.csrc.bwd.bucketed_k2q_csr")
    caches = (
        interface.bsa_attn_fwd.compile_cache,
        interface._bsa_attn_bwd_bucketed_k2q_csr.compile_cache,
        lists.build_bucketed_k2q_csr_cutedsl.compile_cache,
    )
    kernel, before = CuDNNBlockSparse(), None
    for kept in (0.28, 0.3, 0.32):  # 17, 18 and 20 of 63 blocks: lists of at most 24
        asked = problem(uniform(64, kept=kept))
        both_ways(kernel, draw_inputs(asked, 0), kernel.plan(asked))
        before = before or [len(cache) for cache in caches]
    assert [len(cache) for cache in caches] == before
