"""bsa under Triton's interpreter, against attention by the book in float64.

pytest does not collect this file by itself: `test_interpreted.py` runs it in a process that interprets.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from longca.masks import BlockSparseMask
from longca_triton.checking import (
    check,
    check_far_offsets,
    check_parts,
    check_sinks,
    check_strides,
    check_unseen,
    cpu_problem,
    draw_tensors,
)
from longca_triton.config import Config, Configs
from longca_vsa.bsa import launches
from longca_vsa.bsa.configs import FromScores
from longca_vsa.bsa.kernel import BlockSparseAttention

POINTERS = BlockSparseAttention(Configs(Config(64, 32, 4, 2), Config(32, 32, 4, 2), Config(32, 32, 4, 2)))
DESCRIPTORS = BlockSparseAttention(
    Configs(Config(32, 64, 4, 2, True), Config(64, 32, 4, 2, True), Config(64, 32, 4, 2, True))
)
STORED = BlockSparseAttention(
    Configs(Config(32, 64, 4, 2, True), Config(64, 32, 4, 2, True), FromScores(64, 32, 4, 2, True, 2**16, 2**16))
)
KERNELS = {"pointers": POINTERS, "descriptors": DESCRIPTORS, "stored": STORED}

# Keys that are not of a tile's block, or past the sequence's end, get infinite weights in the kernel of dk and dv. They
# stay in their own rows, which are not stored.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")


@pytest.fixture(params=KERNELS)
def kernel(request):
    return KERNELS[request.param]


def problem(mask, heads_q=4, heads_kv=2, **other):
    return cpu_problem(mask, heads_q, heads_kv, **other)


def uniform(block, heads=1, seqlen=110, kept=0.5, seqlen_k=None):
    """A random mask of blocks of one size, which need not divide the lengths."""
    q, k = (np.r_[0:n:block, n] for n in (seqlen, seqlen if seqlen_k is None else seqlen_k))
    random = np.random.default_rng(block + heads)
    return BlockSparseMask(random.random((heads, len(q) - 1, len(k) - 1)) < kept, q, k)


def variable(heads=1, kept=0.5):
    """A random mask of blocks of unequal sizes, of one token among them."""
    q, k = [0, 3, 40, 41, 90, 97], [0, 1, 2, 34, 70, 71, 75]
    return BlockSparseMask(np.random.default_rng(heads).random((heads, len(q) - 1, len(k) - 1)) < kept, q, k)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("heads", "name"),
    [
        (1, "pointers"),
        (2, "descriptors"),
        (4, "pointers"),
        (4, "descriptors"),
        (1, "stored"),
        (2, "stored"),
        (4, "stored"),
    ],
)
@pytest.mark.parametrize(
    "block",
    [5, 32, 64, 100, None, *(pytest.param(block, marks=pytest.mark.exhaustive) for block in (16, 48, 128, 256))],
)
def test_every_block_size(block, heads, name):
    seqlen = {5: 24, 128: 150}.get(block, 100)
    check(problem(uniform(block, heads, seqlen) if block else variable(heads)), KERNELS[name])


@pytest.mark.parametrize("lengths", [(1, 1), (40, 130), (128, 33), (65, 64), (33, 0), (0, 33)])
@pytest.mark.parametrize("name", ["pointers", "stored"])
def test_unequal_lengths(lengths, name):
    check(problem(uniform(32, 2, *lengths[:1], 0.7, lengths[1])), KERNELS[name])


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("heads_q", "heads_kv", "mask_heads"), [(3, 3, 3), (8, 1, 1), (8, 1, 8), (6, 2, 2), (6, 2, 6)])
@pytest.mark.parametrize(("block", "name"), [(16, "descriptors"), (64, "descriptors"), (64, "stored")])
def test_heads(heads_q, heads_kv, mask_heads, block, name):
    check(problem(uniform(block, mask_heads, seqlen=100), heads_q, heads_kv), KERNELS[name])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("at_a_time", [1, 2])
@pytest.mark.parametrize("mask_heads", [2, 8])
def test_a_group_whose_heads_are_taken_in_several_launches(mask_heads, at_a_time, monkeypatch):
    monkeypatch.setattr(launches, "heads_a_launch", lambda q, group: at_a_time)
    check(problem(uniform(48, mask_heads), 8, 2), DESCRIPTORS)


@pytest.mark.parametrize("head_dim", [128, 256])
def test_head_dimensions(head_dim):
    check(problem(variable(2), head_dim=head_dim), DESCRIPTORS)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mask", [uniform(16), uniform(32), variable()], ids=["16", "32", "variable"])
def test_rows_and_keys_without_blocks(mask, kernel):
    kept = np.stack([mask.kept(0), mask.kept(0)])
    kept[0, 1], kept[1, :, 2], kept[1, 2:4] = False, False, False
    mask = BlockSparseMask(kept, mask.q_bounds, mask.k_bounds)
    check_unseen(check(problem(mask), kernel), torch.from_numpy(mask.dense()))


def test_large_scores_and_a_scale_of_ones_own():
    results = check(problem(variable(2), softmax_scale=2.0), DESCRIPTORS)
    assert all(x[torch.isfinite(x) | (x != -torch.inf)].isfinite().all() for x in results)


def test_very_negative_scores_past_which_a_block_of_keys_ends():
    asked = problem(uniform(40, 1, seqlen=40, kept=1.0), 1, 1, softmax_scale=30.0)
    q, k, v, dout = draw_tensors(asked)
    check(asked, POINTERS, (q.abs(), -k.abs(), v, dout))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("block", [16, 32, 50])
def test_equal_scores_count_keys_exactly(block, kernel):
    mask = uniform(block, 4, kept=0.4)
    asked = problem(mask, direction="forward")
    q, k, v, _ = draw_tensors(asked)
    _, lse = kernel.forward(torch.zeros_like(q), k, v, kernel.plan(asked))
    counts = torch.from_numpy(mask.dense().sum(2)).double()
    torch.testing.assert_close(lse.double().exp(), counts, rtol=1e-6, atol=0.0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "make", [lambda: uniform(16, 4, 100), lambda: uniform(32, 2, 100), lambda: uniform(30, 1, 100)]
)
def test_a_backward_with_the_out_and_lse_of_a_larger_softmax(make, kernel):
    check_parts(problem(make()), kernel, 40)


def test_sinks():
    check_sinks(problem(uniform(32, 2, 100), sinks=True), POINTERS)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("block", [16, 32])
def test_any_strides(block, kernel):
    check_strides(problem(uniform(block, 2, seqlen=50)), kernel)


@pytest.mark.parametrize("block", [16, 32])
def test_offsets_past_32_bits(block):
    check_far_offsets(problem(uniform(block, 1, seqlen=70), 2, 1), POINTERS)
