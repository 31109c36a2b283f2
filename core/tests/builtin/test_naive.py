"""The naive kernel against a dense reference."""

import pytest
import torch

from longca import masks
from longca_builtin.naive import Naive

from ..kernels.cases import (
    gappy_mask,
    inputs,
    mask_cases,
    pattern_mask,
    per_head_mask,
    problem,
    run,
    run_in_parts,
    truth,
)
from ..kernels.reference import BOUNDS, assert_close

CASES = [pytest.param(*rest, id=name) for name, *rest in mask_cases()]
LOWER = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize(("mask", "heads_q", "heads_kv"), CASES)
def test_float64_is_exact(mask, heads_q, heads_kv):
    given = inputs(mask, heads_q, heads_kv)
    result = run(Naive(), mask, given)
    assert {x.dtype for x in result} == {torch.float64}
    assert_close(result, truth(mask, given), BOUNDS[torch.float64])


@pytest.mark.parametrize("dtype", LOWER, ids=str)
@pytest.mark.parametrize(("mask", "heads_q", "heads_kv"), CASES)
def test_lower_precisions_lose_no_more_than_their_rounding(mask, heads_q, heads_kv, dtype):
    given = inputs(mask, heads_q, heads_kv, dtype=dtype)
    result = run(Naive(), mask, given)
    assert [x.dtype for x in result] == [dtype, torch.float32, dtype, dtype, dtype]
    # It computes in float32 whatever it is given, so lse is that good.
    assert_close(result, truth(mask, given), BOUNDS[dtype]._replace(lse=BOUNDS[torch.float32].lse))


@pytest.mark.parametrize("scale", [1e-3, 0.7, 1])
def test_softmax_scale(scale):
    mask = pattern_mask("causal_document")
    given = inputs(mask, 4, 2)
    result = run(Naive(), mask, given, softmax_scale=scale)
    assert_close(result, truth(mask, given, scale), BOUNDS[torch.float64])


@pytest.mark.parametrize("cuts", [(31,), (12, 40), (12, 12)], ids=str)
@pytest.mark.parametrize("name", ["causal", "full_sliding_window", "shared_question", "per-head", "gappy"])
def test_parts_of_the_keys_merge_to_the_whole(name, cuts):
    mask = {"per-head": lambda: per_head_mask(8), "gappy": gappy_mask}.get(name, lambda: pattern_mask(name))()
    given = inputs(mask, 8, 2)
    assert_close(run_in_parts(Naive(), mask, given, cuts), truth(mask, given), BOUNDS[torch.float64])


@pytest.mark.parametrize("mask", [gappy_mask(), per_head_mask(2)], ids=["gappy", "per-head"])
def test_poisoned_buffers_are_filled_and_returned(mask):
    given = inputs(mask, 4, 2, dtype=torch.bfloat16)
    q, k, v, dout = given
    plan = Naive().plan(problem(mask, given))
    out, lse = torch.full_like(q, torch.nan), torch.full((4, len(q)), torch.nan)
    returned = Naive().forward(q, k, v, plan, out=out, lse=lse)
    assert returned[0] is out
    assert returned[1] is lse
    buffers = [torch.full_like(x, torch.nan) for x in (q, k, v)]
    grads = Naive().backward(dout, q, k, v, out, lse, plan, dq=buffers[0], dk=buffers[1], dv=buffers[2])
    assert all(grad is buffer for grad, buffer in zip(grads, buffers, strict=True))
    for filled, fresh in zip((out, lse, *buffers), run(Naive(), mask, given), strict=True):
        assert torch.equal(filled, fresh)
        assert not filled.isnan().any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_inputs_may_be_strided_and_are_left_alone(dtype):
    mask = pattern_mask("causal_blockwise")
    plain = inputs(mask, 4, 4, dtype=dtype)
    strided = plain._replace(
        q=plain.q.transpose(0, 1).contiguous().transpose(0, 1),
        k=torch.cat([plain.k, plain.k], 2)[..., :16],
        v=plain.v.flip(0).contiguous().flip(0)[:, :, :],
        dout=torch.stack([plain.dout, plain.dout], -1)[..., 0],
    )
    before = [x.clone() for x in strided]
    result, expected = run(Naive(), mask, strided), truth(mask, plain)
    assert_close(result, expected, BOUNDS[dtype])
    assert all(torch.equal(x, y) for x, y in zip(strided, before, strict=True))


@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(0, 5), (5, 0), (0, 0)])
def test_no_queries_or_no_keys(seqlen_q, seqlen_k):
    mask = masks.build("full", 8).cut([(0, seqlen_q)], [(0, seqlen_k)])
    given = inputs(mask, 4, 2)
    out, lse, *grads = run(Naive(), mask, given)
    assert out.shape == given.q.shape
    assert not out.any()
    assert torch.equal(lse, torch.full((4, seqlen_q), -torch.inf, dtype=torch.float64))
    assert [g.shape for g in grads] == [given.q.shape, given.k.shape, given.k.shape]
    assert not any(g.any() for g in grads)


def test_equal_inputs_give_equal_bits():
    mask = per_head_mask(8)
    given = inputs(mask, 8, 2, dtype=torch.float16)
    first, second = (run(Naive(), mask, given, deterministic=True) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, *LOWER], ids=str)
@pytest.mark.parametrize(("mask", "heads_q", "heads_kv"), CASES)
def test_on_a_gpu(mask, heads_q, heads_kv, dtype):
    given = inputs(mask, heads_q, heads_kv, dtype=dtype, device="cuda")
    result = run(Naive(), mask, given)
    assert all(x.is_cuda for x in result)
    assert_close(result, truth(mask, given), BOUNDS[dtype])
