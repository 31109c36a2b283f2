"""bsa on a GPU: the compiled kernels, beyond the conformance suite."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from longca import Problem, masks
from longca.manifests.devices import current_device
from longca.masks import BlockSparseMask
from longca.testing import verify
from longca_triton.checking import both_ways, check_layouts, draw_tensors
from longca_triton.config import Config, Configs
from longca_vsa.bsa.configs import FromScores, choose
from longca_vsa.bsa.kernel import BlockSparseAttention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
LARGE = 48 * 2**30  # bytes that the largest test takes

RANDOM = np.random.default_rng(0)
UNEQUAL = [0, *np.sort(RANDOM.choice(np.arange(1, 1500), 14, replace=False)).tolist(), 1500]


def mask_of(kept, block=None, seqlen=1500):
    """A mask of blocks of one size, or of unequal ones."""
    bounds = UNEQUAL if block is None else np.r_[0:seqlen:block, seqlen]
    return BlockSparseMask(kept(len(bounds) - 1), bounds, bounds)


def random(heads, kept=0.5):
    return lambda blocks: RANDOM.random((heads, blocks, blocks)) < kept


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(("block", "seqlen"), [(16, 1024), (64, 1024), (64, 1000), (None, 1500)])
def test_pointers_and_descriptors(block, seqlen, head_dim, dtype):
    mask = mask_of(random(2), block, seqlen)
    asked = problem(mask, head_dim=head_dim)
    verify(BlockSparseAttention(), mask, dtype=dtype, head_dim=head_dim, heads=(4, 2))
    verify(BlockSparseAttention(choose(asked).by_pointers), mask, dtype=dtype, head_dim=head_dim, heads=(4, 2))


def problem(mask, heads_q=4, heads_kv=2, head_dim=128):
    return Problem(
        mask=mask,
        heads_q=heads_q,
        heads_kv=heads_kv,
        head_dim=head_dim,
        device=current_device(),
        direction="backward",
    )


def storing(streams):
    """bsa with stored gradients of scores, in small parts."""
    small = FromScores(128, 64, 4, 3, True, store=2**21, cache=2**19, streams=streams)
    return BlockSparseAttention(Configs(Config(64, 64, 4, 2, True), Config(64, 64, 4, 2, True), small))


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("block", [16, 64, 128, None])
def test_stored_gradients_of_scores(block, streams):
    mask, kernel = mask_of(random(2), block), storing(streams)
    assert kernel.plan(problem(mask)).cut.has_sums(2)
    verify(kernel, mask, dtype="bfloat16", head_dim=128, heads=(4, 2))
    check_layouts(problem(mask), kernel)


def test_parts_on_two_streams_run_in_a_graph():
    kernel, asked = storing(2), problem(mask_of(random(2), 64))
    plan, (q, k, v, dout) = kernel.plan(asked), draw_tensors(asked)
    out, lse = kernel.forward(q, k, v, plan)
    expected = kernel.backward(dout, q, k, v, out, lse, plan)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = kernel.backward(dout, q, k, v, out, lse, plan)
    for _ in range(2):
        for grad in found:
            grad.fill_(torch.nan)
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("use_pointers", [False, True], ids=["descriptors", "pointers"])
def test_offsets_past_32_bits(use_pointers):
    if torch.cuda.mem_get_info()[1] < LARGE:
        pytest.skip(f"needs a GPU of {LARGE / 2**30:.0f} GiB")
    block, blocks = 1024, 260
    seqlen = block * blocks
    assert seqlen * 64 * 128 > 2**31
    bounds = range(0, seqlen + 1, block)
    asked = problem(BlockSparseMask(np.eye(blocks, dtype=bool), bounds, bounds), 64, 8)
    alone = problem(masks.build("uniform_block_sparse", seqlen=block, block=block, kept=1.0), 64, 8)
    kernel = BlockSparseAttention(choose(asked).by_pointers if use_pointers else None)
    q, k, v, dout = draw_tensors(asked)
    out, lse, *grads = both_ways(kernel, asked, q, k, v, dout)
    last = slice(seqlen - block, seqlen)
    expected = both_ways(kernel, alone, *(x[last] for x in (q, k, v, dout)))
    for result, value in zip((out[last], lse[:, last], *(x[last] for x in grads)), expected, strict=True):
        torch.testing.assert_close(result, value, rtol=2e-2, atol=2e-2)
