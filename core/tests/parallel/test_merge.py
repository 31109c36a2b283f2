"""Merging by lse: two parts of a softmax make the whole, whoever of them sees something."""

import pytest
import torch

from longca import masks
from longca.parallel.merge import merge
from longca_builtin.naive import Naive

from ..kernels.cases import gappy_mask, inputs, problem, truth
from ..kernels.reference import BOUNDS, worst_row


def parts_of(mask, given, cut):
    """(out, lse) over the keys before a cut, and over the keys after it."""
    parts = []
    for start, stop in ((0, cut), (cut, mask.seqlen_k)):
        part = given._replace(k=given.k[start:stop], v=given.v[start:stop])
        plan = Naive().plan(problem(mask.cut([(0, mask.seqlen_q)], [(start, stop)]), part))
        parts.append(Naive().forward(part.q, part.k, part.v, plan))
    return parts


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cut", [0, 12, 25, 41])
@pytest.mark.parametrize("swap", [False, True])
def test_two_parts_make_the_whole(swap, cut, dtype):
    mask = gappy_mask()  # queries that see both parts, either, and neither
    given = inputs(mask, 4, 2, dtype=dtype)
    first, second = parts_of(mask, given, cut)
    before = [x.clone() for x in (*first, *second)]
    out, lse = merge(second, first) if swap else merge(first, second)
    expected = truth(mask, given)
    assert out.dtype is lse.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    assert worst_row(out, expected.out) <= BOUNDS[dtype].out
    assert torch.equal(lse == -torch.inf, expected.lse == -torch.inf)
    seen = expected.lse > -torch.inf
    assert (lse - expected.lse)[seen].abs().max() <= BOUNDS[dtype].lse
    assert not out[~seen.T].any()
    assert all(torch.equal(x, y) for x, y in zip((*first, *second), before, strict=True))


def test_huge_scores_neither_overflow_nor_vanish():
    mask = masks.build("full", 8)
    given = inputs(mask, 2, 1)
    given = given._replace(q=given.q * 1e4)
    first, second = parts_of(mask, given, 3)
    out, lse = merge(first, second)
    expected = truth(mask, given)
    assert worst_row(out, expected.out) < 1e-9
    assert ((lse - expected.lse) / expected.lse).abs().max() < 1e-12
