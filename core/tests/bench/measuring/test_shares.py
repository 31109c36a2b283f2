"""Shares of heads: all that there are, and of large problems some on every rank, the last head among them."""

import pytest
import torch

from longca import Device, Problem, masks
from longca_bench.measuring.shared_inputs import SharedInputs
from longca_bench.measuring.shares import shares
from longca_bench.verification.head_sample import Turn
from longca_bench.verification.inputs import Inputs


def problem_of(seqlen, heads):
    heads_q, heads_kv = heads
    return Problem(mask=masks.build("full", seqlen=seqlen), heads_q=heads_q, heads_kv=heads_kv, device=Device("cpu"))


def dealt(seqlen, heads, ranks):
    problem = problem_of(seqlen, heads)
    return [(share.heads_kv, share.heads_q) for share in shares(problem, ranks)]


def test_all_heads_are_dealt():
    assert dealt(64, (8, 4), 3) == [((0, 1), (0, 2)), ((1, 2), (2, 4)), ((2, 4), (4, 8))]


def test_some_ranks_have_none():
    assert dealt(64, (4, 2), 4) == [((0, 0), (0, 0)), ((0, 1), (0, 2)), ((1, 1), (2, 2)), ((1, 2), (2, 4))]


@pytest.mark.parametrize(("ranks", "kv"), [(2, [(0, 1), (7, 8)]), (4, [(0, 1), (2, 3), (4, 5), (7, 8)])])
def test_of_a_large_problem_some_heads_stand_for_all(ranks, kv):
    assert dealt(2**17, (64, 8), ranks) == [((a, b), (8 * a, 8 * b)) for a, b in kv]


@pytest.mark.parametrize(("seqlen", "heads"), [(64, None), (2**17, (0, 2, 4, 7))])
def test_which_heads_they_are_is_said(seqlen, heads):
    dealt, tensors = shares(problem_of(seqlen, (64, 8)), 4), Inputs(*(torch.empty(1, n, 1) for n in (64, 8, 8, 64)))
    assert SharedInputs(tensors, dealt, tensors, None).verified_kv_heads == heads


@pytest.mark.parametrize("seqlen", [64, 2**17])
def test_one_device_has_all_heads(seqlen):
    problem = problem_of(seqlen, (64, 8))
    (share,) = shares(problem, 1)
    assert (share.heads_kv, share.problem(problem)) == ((0, 8), problem), "a reference samples heads itself"


@pytest.mark.parametrize("ranks", [2, 3])
def test_steps_of_a_stream_deal_the_heads_of_each_rank_by_turns(ranks):
    problem = problem_of(2**17, (64, 8))
    turns = [shares(problem, ranks, Turn(number, 50)) for number in range(5, 9)]
    bounds = [8 * rank // ranks for rank in range(ranks + 1)]
    for rank in range(ranks):
        heads = [each[rank].heads_kv for each in turns]
        assert {stop - start for start, stop in heads} == {1}
        assert {start for start, _ in heads} == set(range(bounds[rank], bounds[rank + 1]))
        assert [each[rank].heads_q for each in turns] == [(8 * a, 8 * b) for a, b in heads]


def test_steps_of_a_small_stream_deal_all_heads():
    problem = problem_of(64, (8, 4))
    assert shares(problem, 3, Turn(1, 50)) == shares(problem, 3)
