"""Blockwise attention: the same for all blocks, in memory that is linear in the sequence."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from longca import masks
from longca_builtin import blockwise
from longca_builtin.blockwise import attention_backward, attention_forward, query_blocks

from ..kernels.cases import gappy_mask, inputs, pattern_mask, per_head_mask, truth
from ..kernels.reference import BOUNDS, Result, assert_close

CPU = torch.device("cpu")
MASKS = {
    "causal_document": lambda: pattern_mask("causal_document"),
    "shared_question": lambda: pattern_mask("shared_question"),
    "uneven": lambda: pattern_mask("causal", 101),
    "gappy": gappy_mask,
    "per-kv-head": lambda: per_head_mask(2),
    "per-query-head": lambda: per_head_mask(8),
    "empty": lambda: masks.build("causal", 64).cut([(0, 20)], [(30, 60)]),
}


@pytest.fixture
def scores_a_block(monkeypatch):
    """Sets how many scores a block may have, down to those of a single query."""

    def set_to(most):
        monkeypatch.setattr(blockwise, "_SCORES", {"cpu": most})
        monkeypatch.setattr(blockwise, "_LEAST_ROWS", 1)

    return set_to


def both(mask, given, dtype):
    q, k, v, dout = given
    out, lse = attention_forward(q, k, v, mask, 0.3, dtype)
    return Result(out, lse, *attention_backward(dout, q, k, v, out, lse, mask, 0.3, dtype))


@pytest.mark.parametrize("scores", [1, 2000, 9000, 2**24])
@pytest.mark.parametrize("name", MASKS)
def test_blocks_of_any_height_agree_with_the_dense_result(name, scores, scores_a_block):
    scores_a_block(scores)
    mask = MASKS[name]()
    given = inputs(mask, 8, 2)
    assert_close(both(mask, given, torch.float64), truth(mask, given, 0.3), BOUNDS[torch.float64])


@pytest.mark.parametrize("scores", [1, 2000, 2**24])
@pytest.mark.parametrize("name", MASKS)
def test_blocks_tile_the_mask(name, scores, scores_a_block):
    scores_a_block(scores)
    mask = MASKS[name]()
    dense = mask.dense() if mask.heads > 1 else mask.dense()[None]
    rebuilt, queries = np.zeros_like(dense), []
    for block in query_blocks(mask, 8, CPU):
        assert block.visible.dtype is torch.bool
        height = block.queries.stop - block.queries.start
        width = len(np.arange(mask.seqlen_k)[block.keys])
        assert block.visible.shape == (mask.heads, height, width)
        assert 8 * height * width <= scores or height == 1
        rebuilt[:, block.queries, block.keys] = block.visible.numpy()
        queries += range(block.queries.start, block.queries.stop)
    assert queries == list(range(mask.seqlen_q))
    assert np.array_equal(rebuilt, dense)


def test_a_block_has_only_the_keys_that_its_queries_see(scores_a_block):
    scores_a_block(10 * 100)
    mask = masks.build("causal_sliding_window", 100, window=7)
    spans = [(b.queries, b.keys.start, b.keys.stop) for b in query_blocks(mask, 1, CPU)]
    assert len(spans) > 2
    assert spans == [(queries, max(0, queries.start - 7), queries.stop) for queries, _, _ in spans]


def test_queries_that_see_nothing_have_no_keys(scores_a_block):
    scores_a_block(41)  # a query each
    blocks = list(query_blocks(gappy_mask(), 1, CPU))
    unseen = [b.queries for b in blocks if b.keys.start == b.keys.stop]
    assert unseen
    assert {q for queries in unseen for q in range(queries.start, queries.stop)} <= {
        *range(3),
        *range(9, 20),
        *range(35, 40),
    }
    assert not any(b.visible.numel() for b in blocks if b.queries in unseen)


@pytest.mark.parametrize("scores", [None, 2**30])
@pytest.mark.parametrize(("heads", "kept"), [(1, 0.05), (1, 0.3), (8, 0.02)])
def test_blocks_of_a_block_sparse_mask_have_few_keys_that_no_query_sees(heads, kept, scores):
    mask = masks.build("uniform_block_sparse", 4096, block=64, kept=kept, heads=heads, seed=3)
    union = np.bitwise_or.reduce(mask.dense().reshape(heads, 4096, 4096)) if heads > 1 else mask.dense()
    computed = sum(block.visible[0].numel() for block in query_blocks(mask, 8, CPU, scores))
    assert union.sum() <= computed < 1.5 * union.sum() < 0.5 * 4096**2


@pytest.mark.parametrize(("seqlen", "heads"), [(1, 1), (500, 2), (1000, 64), (3000, 8), (5000, 1)])
def test_scores_of_a_block_stay_within_the_stated_size(seqlen, heads):
    blocks = list(query_blocks(masks.build("causal", seqlen), heads, CPU))
    heights = [block.queries.stop - block.queries.start for block in blocks]
    assert sum(heights) == seqlen
    assert max(block.visible.numel() for block in blocks) * heads <= 2**20
    # Few rows have few keys, and so more rows go together; but never fewer than half of what would fit.
    assert len(blocks) == 1 or 2 * heights[0] * heads * 2 * heights[0] > 2**20


_MEASURE = """
import resource, torch
from longca import masks
from longca_builtin.blockwise import attention_backward, attention_forward

def run(seqlen):
    mask = masks.build("causal_sliding_window", seqlen, window=16)
    q, k, v = (torch.randn(seqlen, 1, 8) for _ in range(3))
    out, lse = attention_forward(q, k, v, mask, 1.0, torch.float32)
    attention_backward(out, q, k, v, out, lse, mask, 1.0, torch.float32)

torch.set_num_threads(1)
run(128)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(32 * 1024)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_peak_memory_is_far_below_the_square():
    pytest.importorskip("resource")
    done = subprocess.run([sys.executable, "-c", _MEASURE], capture_output=True, text=True, check=True, timeout=120)
    # The scores of 32 K tokens would take 4096 MiB, and a boolean matrix 1024; a window's blocks take a few.
    assert float(done.stdout) < 200


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_low_precision_rounds_what_is_between(dtype):
    mask = pattern_mask("causal")
    given = inputs(mask, 4, 2, dtype=dtype)
    low, exact = both(mask, given, dtype), truth(mask, given, 0.3)
    assert low.out.dtype is low.dq.dtype is low.dk.dtype is low.dv.dtype is dtype
    assert low.lse.dtype is torch.float32
    eps = torch.finfo(dtype).eps
    assert_close(low, exact, BOUNDS[dtype]._replace(out=4 * eps, grad=16 * eps, lse=4 * eps))
    # Rounded scores move lse by far more than float32 does: this is what other kernels' errors are held against.
    assert (low.lse - exact.lse).abs().max() > eps / 32


def test_gradients_of_many_queries_are_summed_in_float32(scores_a_block):
    # Key 0's dv is the sum of 4000 equal gradients; a bfloat16 sum over blocks would stop at 256.
    scores_a_block(40)
    mask = masks.build("full", 4000, seqlen_k=1)
    q, k, v = (torch.ones(n, 1, 2, dtype=torch.bfloat16) for n in (4000, 1, 1))
    out, lse = attention_forward(q, k, v, mask, 1.0, torch.bfloat16)
    _, _, dv = attention_backward(q, q, k, v, out, lse, mask, 1.0, torch.bfloat16)
    assert dv[0, 0, 0].item() == pytest.approx(4000, rel=0.01)


GIB = 2**30


@pytest.mark.parametrize(
    ("free", "mine", "cached", "fraction", "bytes_of_a_block"),
    [
        (130 * GIB, 0, 0, 1.0, 96 * GIB),  # no block is larger
        (50 * GIB, 20 * GIB, 10 * GIB, 1.0, 60 * GIB),  # what the allocator keeps is free too
        (90 * GIB, 40 * GIB, 5 * GIB, 0.75, 65 * GIB),  # 105 GiB are allowed, and this process has 40
        (90 * GIB, 100 * GIB, 0, 0.75, 12 * GIB),  # no block is smaller
    ],
)
def test_a_block_takes_what_is_free_and_what_the_process_is_allowed(
    monkeypatch, free, mine, cached, fraction, bytes_of_a_block
):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 140 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: mine)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: mine + cached)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: fraction)
    found = blockwise.ample_scores(torch.device("cuda", 0)) * blockwise._BYTES_A_SCORE
    assert bytes_of_a_block - 96 < found <= bytes_of_a_block
