"""fa3, fa3_sparse and fa4 on a GPU: what the conformance suite lacks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import longca
from longca import Problem, masks
from longca.manifests.devices import current_device
from longca.masks import BlockSparseMask, Slice, SliceMask
from longca.plugins import registry
from longca.testing import verify
from longca_builtin.naive import Naive
from longca_flashattn.fa3 import FlashAttention3
from longca_flashattn.fa3_sparse import FlashAttention3Sparse

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="no Hopper GPU here"
    ),
]
LARGE = 48 * 2**30  # bytes that the largest test takes
RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def kernel():
    return FlashAttention3Sparse()


def blocks(q_bounds, k_bounds, heads, kept=0.5):
    """A random mask in which a row keeps nothing and another row keeps all."""
    bitmap = RANDOM.random((heads, len(q_bounds) - 1, len(k_bounds) - 1)) < kept
    bitmap[0, 0], bitmap[0, -1] = False, True
    return BlockSparseMask(bitmap, q_bounds, k_bounds)


def uniform(seqlen, block):
    return [*range(0, seqlen, block), seqlen]


def problem(mask, heads=(8, 2), **changes):
    return Problem(mask=mask, heads_q=heads[0], heads_kv=heads[1], device=current_device(), **changes)


@pytest.mark.parametrize("heads", [(8, 1), (4, 4), (16, 2), (6, 2)])
@pytest.mark.parametrize("lengths", [(1024, 1024), (1000, 777), (128, 2000), (70, 30)])
@pytest.mark.parametrize("block", [16, 48, 64, 100, 128, 192, 256])
def test_blocks(kernel, block, lengths, heads):
    for mask_heads in sorted({1, heads[1]}):
        mask = blocks(uniform(lengths[0], block), uniform(lengths[1], block), mask_heads)
        verify(kernel, mask, dtype="bfloat16", head_dim=128, heads=heads, direction="forward")


@pytest.mark.parametrize("seqlen", [2**13, 2**18 + 64])
def test_a_block_far_away_reads_its_own_keys(kernel, seqlen):
    if torch.cuda.mem_get_info()[1] < LARGE:
        pytest.skip(f"needs a GPU of {LARGE / 2**30:.0f} GiB")
    block = 64
    bounds = uniform(seqlen, block)
    kept = np.zeros((8, len(bounds) - 1, len(bounds) - 1), np.bool_)
    kept[:, -1, -1] = kept[0, 0, -1] = True
    asked = problem(BlockSparseMask(kept, bounds, bounds), (64, 8))
    q, k, v = (torch.randn(seqlen, heads, 128, dtype=torch.bfloat16, device="cuda") for heads in (64, 8, 8))
    out, lse = kernel.forward(q, k, v, kernel.plan(asked))
    alone = problem(masks.build("full", block), (64, 8))
    tail = [x[-block:].float() for x in (q, k, v)]
    wanted = Naive().forward(*tail, Naive().plan(alone))
    torch.testing.assert_close(out[-block:].float(), wanted[0], rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(lse[:, -block:], wanted[1], rtol=1e-3, atol=1e-3)
    assert not out[block:-block].any()
    assert (lse[:8, block:-block] == -torch.inf).all()
    assert (lse[:8, :block] > -torch.inf).all()
    assert (lse[8:, :block] == -torch.inf).all()


#: Masks of layers. In the last one some rows see nothing, and two of the layers share rows.
LAYERS = {
    "prefix_lm_document": masks.build("prefix_lm_document", 1500, documents=[700, 1, 299, 500], prefix=130),
    "causal_blockwise": masks.build("causal_blockwise", 1300, documents=[500, 130, 470, 200]),
    "global_sliding_window": masks.build("global_sliding_window", 1000, window=100, global_tokens=70),
    "holes": SliceMask(
        [
            Slice(0, 300, 0, 300),
            Slice(500, 800, 200, 450),
            Slice(500, 800, 900, 1300),
            Slice(900, 1200, 800, 1100, hi=0),
        ],
        1200,
        1300,
    ),
}


#: Masks of layers that are one call over copies of keys. In the last one some rows see nothing.
JOINED = {
    "shared_question": masks.build("shared_question", 1300, documents=[300, 130, 1, 569, 300]),
    "two ranges": SliceMask(
        [Slice(0, 300, 0, 100), Slice(0, 300, 500, 800), Slice(500, 700, 100, 101), Slice(500, 700, 300, 707)], 900, 900
    ),
}


#: Masks of rectangles, which are calls on slices of the tensors. Some rows of the first two see nothing.
RECTANGLES = {
    "inside": SliceMask([Slice(140, 900, 130, 1001, hi=300)], 1100, 1300),
    "queries before the keys": SliceMask([Slice(10, 900, 350, 700, hi=-340)], 1000, 900),
    "some queries": SliceMask([Slice(777, 1000, 0, 900)], 1000, 900),
    "chunks of a zigzag": SliceMask([Slice(0, 400, 0, 400, hi=0), Slice(400, 800, 0, 1600, hi=800)], 800, 1600),
    "a prefix": masks.build("prefix_lm_causal", 1100, prefix=300),
}


@pytest.mark.parametrize("heads", [(8, 2), (4, 4)])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("name", RECTANGLES)
def test_rectangles_are_calls_on_slices(name, head_dim, heads):
    calls = FlashAttention3().plan(problem(RECTANGLES[name], heads, head_dim=head_dim, direction="backward")).calls
    assert all(call.part is not None for call in calls)
    verify(FlashAttention3(), RECTANGLES[name], dtype="bfloat16", head_dim=head_dim, heads=heads)


@pytest.mark.parametrize("name", ["prefix_lm_document", "shared_question", *RECTANGLES])
def test_calls_write_all_of_their_buffers_and_nothing_else(name):
    mask = (LAYERS | JOINED | RECTANGLES)[name]
    asked, tokens, keys = problem(mask, direction="backward"), mask.seqlen_q, mask.seqlen_k
    kernel, plan = FlashAttention3(), FlashAttention3().plan(asked)
    packed = torch.randn(max(tokens, keys), 12, 128, dtype=torch.bfloat16, device="cuda")
    q, k, v = (x[:n] for x, n in zip(packed.split([8, 2, 2], dim=1), (tokens, keys, keys), strict=True))
    dout = torch.randn_like(q)
    out, lse = kernel.forward(q, k, v, plan)
    wanted = (out, lse, *kernel.backward(dout, q, k, v, out, lse, plan))
    wide = torch.full((len(packed), 24, 128), torch.nan, dtype=q.dtype, device="cuda")
    parts = zip(wide[:, 12:].split([8, 2, 2], dim=1), (tokens, keys, keys), strict=True)
    outside, dq, dk, dv = wide[:, :12], *(x[:n] for x, n in parts)
    buffer, sums = torch.full_like(out, torch.nan), torch.full_like(lse, torch.nan)
    found = kernel.forward(q, k, v, plan, out=buffer, lse=sums)
    found += kernel.backward(dout, q, k, v, *found, plan, dq=dq, dk=dk, dv=dv)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)
    assert outside.isnan().all()
    assert wide[tokens:, 12:20].isnan().all()
    assert wide[keys:, 20:].isnan().all()


#: Masks that FlashAttention-4 takes in one call, in which every query sees a key.
ONE_CALL = {
    "full": masks.build("full", 1000),
    "causal": masks.build("causal", 1000),
    "window": masks.build("causal_sliding_window", 1000, window=128),
    "documents": masks.build("causal_document", 1000, documents=[1, 300, 99, 600]),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the CUTLASS DSL
@pytest.mark.parametrize("kernel", ["fa4", "fa3+fa4", "fa4+fa3"])
@pytest.mark.parametrize("heads", [(8, 1), (3, 3)])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", ONE_CALL)
def test_sinks_of_fa4s_own(name, head_dim, heads, kernel):
    pytest.importorskip("flash_attn.cute")
    mask = ONE_CALL[name]
    tensors = [
        torch.randn(1000, n, head_dim, dtype=torch.bfloat16, device="cuda") for n in (*heads, heads[1], heads[0])
    ]
    *qkv, dout = tensors
    sinks = torch.linspace(-2, 5, heads[0], device="cuda")
    sinks[-1] = -torch.inf
    fa4 = registry().load("fa4")
    assert fa4.forward_with_sinks(*qkv, sinks, fa4.plan(problem(mask, heads, head_dim=head_dim))) is not None

    def results(kernel, dtype):
        leaves = [x.detach().to(dtype).requires_grad_() for x in qkv]
        leaves.append(sinks.to(torch.promote_types(dtype, torch.float32)).requires_grad_())
        out, lse = longca.attention(*leaves[:3], mask, kernel=kernel, sinks=leaves[3], return_lse=True)
        return out.detach(), lse, *torch.autograd.grad(out, leaves, dout.to(dtype))

    found, wanted = results(kernel, torch.bfloat16), results("naive", torch.float64)
    # The gradient of a sink is a sum over queries, of which most cancels.
    parts = (sinks.double()[:, None] - wanted[1]).exp() * (dout.double() * wanted[0]).sum(-1).T
    sizes = [x.norm() for x in (*wanted[:-1], parts)]
    for mine, right, size in zip(found, wanted, sizes, strict=True):
        error = (mine.double() - right).norm() / size
        assert error < 8e-3, error  # without sinks 2e-3 to 4e-3
