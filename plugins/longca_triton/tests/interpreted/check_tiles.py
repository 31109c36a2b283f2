"""The functions that kernels are made of, each in a kernel of its own, against PyTorch.

pytest does not collect this file by itself: `test_interpreted.py` runs it in a process that interprets.
"""

import math

import pytest
import torch
import triton
import triton.language as tl

from longca_triton.descriptors import sources, strides
from longca_triton.softmax import LN2, LOG2E, LOWEST, deltas_of, exponents_of, normalize, weigh
from longca_triton.tiles import head_offset, load_tokens

BLOCK, HEAD_DIM = 16, 32


@triton.jit
def copy_tokens(source, target, stride_t, stride_h, first, head, length, HEAD_DIM: tl.constexpr, TMA: tl.constexpr):
    each = tl.arange(0, 16)
    offset = head_offset(tl.program_id(0) + head, stride_h, TMA)
    block = load_tokens(source, first, first + each, offset, stride_t, length, HEAD_DIM, TMA)
    tl.store(target + each[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :], block)


def tensors():
    x = torch.randn(40, 4, HEAD_DIM, generator=torch.Generator().manual_seed(0)).half()
    fused = torch.cat([x, x], dim=1)
    return {"alone": x, "fused": fused[:, 2:6], "by head": x.transpose(0, 1).contiguous().transpose(0, 1)}


@pytest.mark.parametrize("name", tensors())
@pytest.mark.parametrize("first", [0, 7, 30])
@pytest.mark.parametrize("tma", [False, True], ids=["pointers", "descriptors"])
def test_tokens_are_loaded_and_zeros_past_the_end(name, first, tma):
    x = tensors()[name]
    (source,), is_described = sources((x,), (BLOCK,), tma)
    assert is_described == (tma and name != "by head")
    target = torch.full((BLOCK, HEAD_DIM), torch.nan).half()
    copy_tokens[(1,)](source, target, *strides(x), first, 3, len(x), HEAD_DIM=HEAD_DIM, TMA=is_described)
    expected = torch.zeros(BLOCK, HEAD_DIM).half()
    there = x[first : first + BLOCK, 3]
    expected[: len(there)] = there
    assert torch.equal(target, expected)


def test_a_head_past_32_bits():
    far = 2**30 + 64  # heads lie so far apart: 4 GiB for three, of which a few pages are ever touched
    wide = torch.empty(2 * far + 2 * HEAD_DIM, dtype=torch.float16).as_strided((2, 3, HEAD_DIM), (HEAD_DIM, far, 1))
    wide[:, 2] = torch.arange(2 * HEAD_DIM).view(2, HEAD_DIM).half()
    target = torch.empty((BLOCK, HEAD_DIM), dtype=torch.float16)
    copy_tokens[(1,)](wide, target, *strides(wide), 0, 2, 2, HEAD_DIM=HEAD_DIM, TMA=False)
    assert torch.equal(target[:2], wide[:, 2])


@triton.jit
def attend(scores, values, out, lse, factor, TILES: tl.constexpr):
    rows, columns, dims = tl.arange(0, 16), tl.arange(0, 16), tl.arange(0, 32)
    peak = tl.full([16], LOWEST, tl.float32)
    total = tl.zeros([16], tl.float32)
    weighted = tl.zeros([16, 32], tl.float32)
    for tile in range(TILES):
        some = tl.load(scores + rows[:, None] * 16 * TILES + tile * 16 + columns[None, :])
        weights, peak, total, weighted = weigh(some, factor, peak, total, weighted)
        weighted += tl.dot(weights, tl.load(values + (tile * 16 + columns)[:, None] * 32 + dims[None, :]))
    weighted, sums = normalize(peak, total, weighted)
    tl.store(out + rows[:, None] * 32 + dims[None, :], weighted)
    tl.store(lse + rows, sums)


def test_a_softmax_tile_by_tile():
    random = torch.Generator().manual_seed(0)
    scores, values = torch.randn(16, 64, generator=random) * 20, torch.randn(64, 32, generator=random)
    scores[3, :16] = -math.inf  # sees nothing in the first tile
    scores[5] = -math.inf  # nor anywhere
    scores[9] -= 500.0
    out, lse = torch.full((16, 32), torch.nan), torch.full((16,), torch.nan)
    attend[(1,)](scores, values, out, lse, 0.7 * LOG2E.value, TILES=4)
    expected = (0.7 * scores.double()).logsumexp(1)
    assert lse[5] == -math.inf
    assert (out[5] == 0).all()
    seen = torch.arange(16) != 5
    torch.testing.assert_close(lse[seen].double(), expected[seen], rtol=1e-6, atol=1e-5)
    weights = (0.7 * scores[seen].double()).softmax(1)
    torch.testing.assert_close(out[seen].double(), weights @ values.double(), rtol=0.0, atol=1e-5)


@triton.jit
def prepare(out, dout, lse, deltas, exponents):
    rows = tl.arange(0, 16)
    places = rows[:, None] * 32 + tl.arange(0, 32)[None, :]
    tl.store(deltas + rows, deltas_of(tl.load(out + places), tl.load(dout + places)))
    tl.store(exponents + rows, exponents_of(tl.load(lse + rows)))


def test_what_the_backward_keeps():
    random = torch.Generator().manual_seed(0)
    out, dout = (torch.randn(16, 32, generator=random).half() for _ in "od")
    lse = torch.randn(16, generator=random)
    lse[4] = -math.inf
    deltas, exponents = torch.empty(16), torch.empty(16)
    prepare[(1,)](out, dout, lse, deltas, exponents)
    torch.testing.assert_close(deltas, (out.float() * dout.float()).sum(1), rtol=1e-5, atol=1e-5)
    assert exponents[4] == math.inf
    seen = torch.arange(16) != 4
    torch.testing.assert_close(exponents[seen] * LN2.value, lse[seen], rtol=1e-6, atol=1e-6)
