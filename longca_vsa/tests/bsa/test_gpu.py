"""bsa on a GPU: the compiled kernels, beyond the conformance suite."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from longca import Problem, masks
from longca.manifests.devices import current_device
from longca.masks import BlockSparseMask
from longca.testing import verify
from longca_triton.config import Configs
from longca_vsa.bsa.kernel import BlockSparseAttention
from longca_vsa.bsa.plan import make_plan

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


def diagonal(blocks):
    return np.eye(blocks, dtype=bool)


def skewed(blocks):
    """Every query sees the first block, and the queries of one block see all."""
    kept = np.eye(blocks, dtype=bool)
    kept[:, 0], kept[blocks // 2] = True, True
    return kept


def empty(blocks):
    return np.zeros((blocks, blocks), bool)


def full(blocks):
    return np.ones((blocks, blocks), bool)


@pytest.mark.parametrize("heads", [(8, 1), (3, 3), (6, 2)])
@pytest.mark.parametrize("block", [8, 16, 32, 48, 64, 100, 128, 256, None])
def test_every_block_size(block, heads):
    for mask_heads in sorted({1, *heads}):
        verify(BlockSparseAttention(), mask_of(random(mask_heads), block), dtype="bfloat16", head_dim=128, heads=heads)


@pytest.mark.parametrize("kept", [diagonal, skewed, empty, full, random(8, 0.05)])
@pytest.mark.parametrize("block", [16, 64, 128, None])
def test_awkward_masks(block, kept):
    verify(BlockSparseAttention(), mask_of(kept, block), dtype="bfloat16", head_dim=128, heads=(8, 1))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(("block", "seqlen"), [(16, 1024), (64, 1024), (64, 1000), (None, 1500)])
def test_pointers_and_descriptors(block, seqlen, head_dim, dtype):
    mask = mask_of(random(2), block, seqlen)
    asked = problem(mask, head_dim=head_dim)
    verify(BlockSparseAttention(), mask, dtype=dtype, head_dim=head_dim, heads=(4, 2))
    verify(BlockSparseAttention(by_pointers(asked)), mask, dtype=dtype, head_dim=head_dim, heads=(4, 2))


def problem(mask, heads_q=4, heads_kv=2, head_dim=128):
    return Problem(
        mask=mask,
        heads_q=heads_q,
        heads_kv=heads_kv,
        head_dim=head_dim,
        device=current_device(),
        direction="backward",
    )


def by_pointers(asked):
    """The configurations in use, without descriptors."""
    configs = make_plan(asked).configs
    return Configs(*(replace(config, tma=False) for config in (configs.forward, configs.dkdv, configs.dq)))


def both_ways(kernel, asked, q, k, v, dout):
    """out, lse, dq, dk and dv."""
    plan = kernel.plan(asked)
    out, lse = kernel.forward(q, k, v, plan)
    return out, lse, *kernel.backward(dout, q, k, v, out, lse, plan)


@pytest.mark.parametrize("block", [16, 64, None])
def test_strides_change_nothing(block):
    kernel, asked = BlockSparseAttention(), problem(mask_of(random(2), block))
    torch.manual_seed(0)
    fused = torch.randn(1500, 8, 128, device="cuda", dtype=torch.bfloat16)  # q, k and v of one projection, side by side
    dout = torch.randn(1500, 4, 128, device="cuda", dtype=torch.bfloat16)
    q, k, v = fused.split([4, 2, 2], dim=1)
    expected = both_ways(kernel, asked, *(x.contiguous() for x in (q, k, v, dout)))
    by_head = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k, v, dout)]
    for tensors in ((q, k, v, dout), by_head):
        for result, value in zip(both_ways(kernel, asked, *tensors), expected, strict=True):
            torch.testing.assert_close(result, value, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("block", [16, 64, None])
def test_equal_inputs_give_equal_bits(block):
    kernel, asked = BlockSparseAttention(), problem(mask_of(random(4), block))
    torch.manual_seed(0)
    tensors = [torch.randn(1500, n, 128, device="cuda", dtype=torch.bfloat16) for n in (4, 2, 2, 4)]
    first, *others = (both_ways(kernel, asked, *(x.clone() for x in tensors)) for _ in range(3))
    for results in others:
        assert all(torch.equal(a, b) for a, b in zip(first, results, strict=True))


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
    kernel = BlockSparseAttention(by_pointers(asked) if use_pointers else None)
    torch.manual_seed(0)
    q, dout = (torch.randn(seqlen, 64, 128, device="cuda", dtype=torch.bfloat16) for _ in "qo")
    k, v = (torch.randn(seqlen, 8, 128, device="cuda", dtype=torch.bfloat16) for _ in "kv")
    out, lse, *grads = both_ways(kernel, asked, q, k, v, dout)
    last = slice(seqlen - block, seqlen)
    expected = both_ways(kernel, alone, *(x[last] for x in (q, k, v, dout)))
    for result, value in zip((out[last], lse[:, last], *(x[last] for x in grads)), expected, strict=True):
        torch.testing.assert_close(result, value, rtol=2e-2, atol=2e-2)
