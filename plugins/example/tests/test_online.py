"""online against float64 attention: tests that the conformance suite lacks."""

from __future__ import annotations

import pytest
import torch

from longca import Device, Problem, masks
from longca.masks import Slice, SliceMask
from longca_builtin.naive import Naive
from longca_example.online import BLOCK, Online

HOLES = SliceMask([Slice(40, 200, 30, 290, lo=-90, hi=60), Slice(300, 301, 5, 6), Slice(310, 390, 100, 101)], 400, 300)


def problem(mask, heads_q=4, heads_kv=2, head_dim=16, dtype="float64", scale=None):
    return Problem(
        mask=mask,
        heads_q=heads_q,
        heads_kv=heads_kv,
        head_dim=head_dim,
        dtype=dtype,
        device=Device("cpu"),
        direction="backward",
        softmax_scale=scale,
    )


def inputs(asked, seed=0):
    """q, k, v and dout."""
    random = torch.Generator().manual_seed(seed)
    queries = (asked.mask.seqlen_q, asked.heads_q, asked.head_dim)
    keys = (asked.mask.seqlen_k, asked.heads_kv, asked.head_dim)
    dtype = getattr(torch, asked.dtype)
    return [
        torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for shape in (queries, keys, keys, queries)
    ]


def both_ways(kernel, asked, q, k, v, dout):
    """out, lse, dq, dk and dv."""
    plan = kernel.plan(asked)
    out, lse = kernel.forward(q, k, v, plan)
    return out, lse, *kernel.backward(dout, q, k, v, out, lse, plan)


def check(asked, atol=1e-12):
    tensors = inputs(asked)
    results = both_ways(Online(), asked, *tensors)
    for result, expected in zip(results, both_ways(Naive(), asked, *tensors), strict=True):
        assert result.dtype == expected.dtype
        torch.testing.assert_close(result, expected, rtol=1e-10, atol=atol)
    return results


@pytest.mark.parametrize("pattern", ["full", "causal"])
@pytest.mark.parametrize("lengths", [(1, 1), (5, 300), (BLOCK, BLOCK), (BLOCK + 1, 2 * BLOCK - 1), (300, 7)])
def test_uneven_lengths(pattern, lengths):
    seqlen_q, seqlen_k = lengths
    if pattern == "causal" and seqlen_q > seqlen_k:
        mask = SliceMask([Slice(seqlen_q - seqlen_k, seqlen_q, 0, seqlen_k, hi=seqlen_k - seqlen_q)], *lengths)
    else:
        mask = masks.build(pattern, seqlen=seqlen_q, seqlen_k=seqlen_k)
    check(problem(mask))


def test_queries_that_see_nothing_give_nothing():
    out, lse, dq, dk, dv = check(problem(HOLES))
    sees_none = torch.from_numpy(~HOLES.dense().any(1))
    seen_by_none = torch.from_numpy(~HOLES.dense().any(0))
    assert sees_none.any()
    assert (out[sees_none] == 0).all()
    assert (lse[:, sees_none] == -torch.inf).all()
    assert (dq[sees_none] == 0).all()
    assert (dk[seen_by_none] == 0).all()
    assert (dv[seen_by_none] == 0).all()


def test_large_scores_and_a_scale_of_ones_own():
    asked = problem(masks.build("causal", seqlen=300), scale=40.0)
    results = check(asked, atol=1e-10)  # scores reach 600, and rounding errors of their differences grow with them
    assert all(x.isfinite().all() for x in results)


def test_hidden_tiles_are_skipped():
    plan = Online().plan(problem(masks.build("causal", seqlen=4 * BLOCK)))
    visits = [list(plan.key_blocks(slice(row * BLOCK, (row + 1) * BLOCK))) for row in range(4)]
    assert [len(row) for row in visits] == [1, 2, 3, 4]
    assert [sum(hidden is not None for _, hidden in row) for row in visits] == [1, 1, 1, 1]
