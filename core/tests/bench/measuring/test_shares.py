"""Shares of heads: all that there are, and of large problems some on every rank, which are drawn."""

from random import Random

import pytest
import torch

from longca import Device, Problem, masks
from longca_bench.measuring.shares import SharedInputs, shares, shares_of_all
from longca_bench.verification.inputs import Inputs


def problem_of(seqlen, heads):
    heads_q, heads_kv = heads
    return Problem(mask=masks.build("full", seqlen=seqlen), heads_q=heads_q, heads_kv=heads_kv, device=Device("cpu"))


def dealt(seqlen, heads, ranks, seed=0):
    problem = problem_of(seqlen, heads)
    return [(share.heads_kv, share.heads_q) for share in shares(problem, ranks, Random(seed))]


def test_all_heads_are_dealt():
    assert dealt(64, (8, 4), 3) == [((0,), (0, 1)), ((1,), (2, 3)), ((2, 3), (4, 5, 6, 7))]


def test_some_ranks_have_none():
    assert dealt(64, (4, 2), 4) == [((), ()), ((0,), (0, 1)), ((), ()), ((1,), (2, 3))]


@pytest.mark.parametrize("ranks", [2, 3])
def test_of_a_large_problem_each_rank_has_drawn_heads_among_its_own(ranks):
    drawn = [dealt(2**17, (64, 8), ranks, seed) for seed in range(50)]
    everything = shares_of_all(problem_of(2**17, (64, 8)), ranks)
    for rank, share in enumerate(everything):
        mine = {each[rank] for each in drawn}
        assert mine == {((head,), tuple(range(8 * head, 8 * head + 8))) for head in share.heads_kv}
    assert drawn[7] == dealt(2**17, (64, 8), ranks, 7), "ranks that draw the same numbers deal the same heads"


@pytest.mark.parametrize(("seqlen", "count"), [(64, None), (2**17, 4)])
def test_which_heads_they_are_is_said(seqlen, count):
    dealt = shares(problem_of(seqlen, (64, 8)), 4, Random(0))
    tensors = Inputs(*(torch.empty(1, n, 1) for n in (64, 8, 8, 64)))
    heads = SharedInputs(tensors, dealt, tensors, None).verified_kv_heads
    assert heads == (None if count is None else tuple(share.heads_kv[0] for share in dealt))
    assert count is None or len(heads) == count


@pytest.mark.parametrize("seqlen", [64, 2**17])
def test_one_device_has_all_heads(seqlen):
    problem = problem_of(seqlen, (64, 8))
    (share,) = shares(problem, 1, Random(0))
    assert (share.heads_kv, share.problem(problem)) == (tuple(range(8)), problem), "a reference samples heads itself"
