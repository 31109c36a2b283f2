"""Transfers beside a kernel: chunks of whole groups, none if NCCL would slow the kernel, and few if peers push."""

from dataclasses import replace

import pytest

from longca import Device, Problem, masks
from longca_cp.overlap import CHUNK_BYTES, chunks_around_rings, gather_chunks, ulysses_chunks


def problem_of(pattern, seqlen=64, heads=(8, 4)):
    heads_q, heads_kv = heads
    about = {"heads_q": heads_q, "heads_kv": heads_kv, "device": Device("cpu")}
    return Problem(mask=masks.build(pattern, seqlen=seqlen), **about)


@pytest.mark.parametrize(("heads_kv", "count"), [(1, 1), (2, 2), (6, 3), (8, 4), (5, 1)])
@pytest.mark.parametrize("nccl", [False, True])
def test_a_gather_has_as_many_as_divide_the_heads(heads_kv, count, nccl):
    assert gather_chunks(problem_of("causal", heads=(4 * heads_kv, heads_kv)), nccl, pushes=False) == count


def test_full_masks_go_whole_by_nccl():
    full = problem_of("full")
    assert [ulysses_chunks(full, 1, nccl, pushes=False) for nccl in (True, False)] == [1, 2]
    assert [gather_chunks(full, nccl, pushes=False) for nccl in (True, False)] == [1, 4]


@pytest.mark.parametrize(
    ("chunks", "gathered", "by_heads"), [(0.5, 1, 1), (1.5, 1, 1), (2.1, 2, 2), (3.9, 2, 2), (4.1, 4, 2), (9, 4, 2)]
)
def test_chunks_that_are_pushed_are_not_small(chunks, gathered, by_heads):
    row = 128 * 2
    tokens = int(chunks * CHUNK_BYTES) // (16 * row)
    assert gather_chunks(problem_of("causal", tokens, (64, 8)), nccl=True, pushes=True) == gathered
    tokens = int(chunks * CHUNK_BYTES) // (40 * row)
    for pattern in ("causal", "full"):
        assert ulysses_chunks(problem_of(pattern, tokens, (64, 8)), 2, nccl=True, pushes=True) == by_heads


def test_chunks_around_rings_are_pushed_and_have_one_mask():
    tokens = int(4.1 * CHUNK_BYTES) // (40 * 128 * 2)
    causal = problem_of("causal", tokens, (64, 8))
    assert [chunks_around_rings(causal, 2, groups, pushes=True) for groups in (1, 2, 3)] == [2, 2, 1]
    assert chunks_around_rings(causal, 8, 1, pushes=True) == 1  # one KV head
    assert chunks_around_rings(causal, 2, 1, pushes=False) == 1
    blocks = masks.build("uniform_block_sparse", tokens, block=128, kept=0.5, heads=8)
    assert chunks_around_rings(replace(causal, mask=blocks), 2, 1, pushes=True) == 1
