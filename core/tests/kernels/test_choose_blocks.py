"""choose_blocks against means, products and a stable sort, and training with its masks."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import longca
from longca.errors import MaskError, RequestError, UnknownNameError

UNEQUAL = [0, 1, 9, 40, 41, 70]


def drawn(tokens_q=70, tokens_k=70, heads_q=8, heads_kv=2, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (tokens_q, heads_q, 16), (tokens_k, heads_kv, 16)
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)


def expected(q, k, q_bounds, k_bounds, count, per):
    """The bitmap, block by block in float64."""
    q, k = q.double().numpy(), k.double().numpy()
    group = q.shape[1] // k.shape[1]
    k = k.repeat(group, axis=1)
    scores = np.array(
        [
            [
                [q[q0:q1, head].mean(0) @ k[k0:k1, head].mean(0) for k0, k1 in pairwise(k_bounds)]
                for q0, q1 in pairwise(q_bounds)
            ]
            for head in range(q.shape[1])
        ]
    )
    if per == "kv":
        scores = scores.reshape(-1, group, *scores.shape[1:]).mean(1)
    if per == "shared":
        scores = scores.mean(0, keepdims=True)
    ranks = (-scores).argsort(-1, kind="stable").argsort(-1)
    return ranks < count


def bitmap(mask):
    return np.stack([mask.kept(head) for head in range(mask.heads)])


@pytest.mark.parametrize("per", ["kv", "query", "shared"])
@pytest.mark.parametrize("bounds", [None, UNEQUAL])
@pytest.mark.parametrize("tokens_k", [70, 131])
def test_the_blocks_whose_means_score_highest(per, bounds, tokens_k):
    q, k = drawn(tokens_k=tokens_k)
    mask = longca.choose_blocks(q, k, block=16, q_bounds=bounds, kept=0.4, per=per)
    q_bounds = bounds or [*range(0, 70, 16), 70]
    k_bounds = [*range(0, tokens_k, 16), tokens_k]
    assert (mask.q_bounds.tolist(), mask.k_bounds.tolist()) == (q_bounds, k_bounds)
    assert np.array_equal(bitmap(mask), expected(q, k, q_bounds, k_bounds, int(0.4 * (len(k_bounds) - 1)), per))


def test_of_equal_scores_the_first_are_taken():
    q, k = torch.ones(64, 2, 8), torch.ones(64, 2, 8)
    k[40:48] = 2
    assert (bitmap(longca.choose_blocks(q, k, block=8)) == [1, 1, 1, 0, 0, 1, 0, 0]).all()


def test_what_is_not_a_number_ranks_last_and_rows_keep_as_many():
    q, k = torch.ones(64, 2, 8), torch.ones(64, 2, 8)
    k[8] = torch.nan
    assert (bitmap(longca.choose_blocks(q, k, block=8)) == [1, 0, 1, 1, 1, 0, 0, 0]).all()
    q[:8] = torch.nan
    assert (bitmap(longca.choose_blocks(q, k, block=8))[:, 0] == [1, 1, 1, 1, 0, 0, 0, 0]).all()


def test_random_scores_follow_the_seed():
    q, k = drawn()
    one, again, other = (longca.choose_blocks(q, k, block=7, scores="random", seed=seed) for seed in (1, 1, 2))
    assert one == again != other
    assert not np.array_equal(one.kept(0), one.kept(1))


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"kept": 0}, MaskError, "above 0 and at most 1"),
        ({"block": 0}, MaskError, "block is 0"),
        ({"seed": -1}, MaskError, "seed is -1"),
        ({"q_bounds": [0, 69]}, MaskError, "query block bounds end at 69, but there are 70 tokens"),
        ({"k_bounds": [0, 9, 9, 70]}, MaskError, "key block bounds must ascend"),
        ({"scores": "polled"}, UnknownNameError, "Did you mean pooled"),
        ({"per": "kw"}, UnknownNameError, "Did you mean kv"),
    ],
)
def test_what_does_not_fit_is_said(given, error, words):
    with pytest.raises(error, match=words):
        longca.choose_blocks(*drawn(), **given)


def test_tensors_that_do_not_fit_are_refused():
    q, k = drawn()
    with pytest.raises(RequestError, match="do not divide"):
        longca.choose_blocks(q[:, :3], k)
    with pytest.raises(MaskError, match="no key tokens"):
        longca.choose_blocks(q, k[:0])


@pytest.mark.gpu
@pytest.mark.parametrize("bounds", [None, UNEQUAL])
def test_a_gpu_chooses_the_same(bounds):
    q, k = drawn()
    there = longca.choose_blocks(q.cuda(), k.cuda(), block=16, q_bounds=bounds, kept=0.4)
    assert there == longca.choose_blocks(q, k, block=16, q_bounds=bounds, kept=0.4)
