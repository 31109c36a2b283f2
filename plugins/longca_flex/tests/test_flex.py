"""flex against float64 attention. On the CPU its functions run uncompiled, which tests all but the lists and tiles."""

from __future__ import annotations

import pytest
import torch

from longca import Device, Problem, masks
from longca.masks import Slice, SliceMask
from longca.parallel.merge import merge
from longca.testing import verify
from longca_builtin.naive import Naive
from longca_flex import flex
from longca_flex.flex import Flex

CPU = Device("cpu")
DOCUMENTS = [70, 1, 128, 57]


@pytest.fixture(scope="module")
def kernel():
    return Flex("eager")


def problem(mask, heads=(4, 2), direction="backward", scale=None, softcap=None):
    return Problem(
        mask=mask,
        heads_q=heads[0],
        heads_kv=heads[1],
        head_dim=16,
        dtype="float32",
        device=CPU,
        direction=direction,
        softmax_scale=scale,
        softcap=softcap,
    )


def inputs(mask, heads=(4, 2)):
    """q, k, v and dout."""
    random = torch.Generator().manual_seed(0)
    queries, keys = (mask.seqlen_q, heads[0], 16), (mask.seqlen_k, heads[1], 16)
    return [torch.randn(shape, generator=random) for shape in (queries, keys, keys, queries)]


def both_ways(kernel, asked, q, k, v, dout):
    plan = kernel.plan(asked)
    out, lse = kernel.forward(q, k, v, plan)
    return out, lse, *kernel.backward(dout, q, k, v, out, lse, plan)


def check(kernel, asked, tensors):
    results = both_ways(kernel, asked, *tensors)
    for result, expected in zip(results, both_ways(Naive(), asked, *tensors), strict=True):
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    return results


MASKS = {
    "causal sliding window": masks.build("causal_sliding_window", 256, window=100),
    "block causal documents": masks.build("block_causal_document", 256, documents=DOCUMENTS, block=48),
    "shared question": masks.build("shared_question", 256, documents=DOCUMENTS),
    "blocks of 64": masks.build("uniform_block_sparse", 203, block=64, kept=0.5, heads=2, seed=1),
    "blocks of 40, a mask a query head": masks.build("uniform_block_sparse", 203, block=40, kept=0.5, heads=4, seed=1),
}


@pytest.mark.parametrize("softcap", [None, 1.0])
@pytest.mark.parametrize("name", MASKS)
def test_masks(kernel, name, softcap):
    verify(kernel, MASKS[name], heads=(4, 2), head_dim=16, head_dim_v=24, softcap=softcap, device=CPU)


@pytest.mark.parametrize(("heads", "mask_heads"), [((4, 4), 1), ((6, 2), 2), ((8, 1), 8)])
def test_variable_blocks(kernel, heads, mask_heads):
    bounds = (0, 3, 64, 65, 130, 203)
    mask = masks.build("variable_block_sparse", 203, boundaries=bounds, kept=0.4, heads=mask_heads, seed=1)
    verify(kernel, mask, heads=heads, head_dim=16, device=CPU)


def test_queries_that_see_nothing_give_nothing(kernel):
    mask = SliceMask([Slice(40, 100, 30, 190, lo=-90, hi=60), Slice(110, 190, 100, 101)], 200, 200)
    out, lse, dq, dk, _ = check(kernel, problem(mask), inputs(mask))
    sees_none = torch.from_numpy(~mask.dense().any(1))
    assert (lse[:, sees_none] == -torch.inf).all()
    assert (out[sees_none] == 0).all()
    assert (dq[sees_none] == 0).all()
    assert (dk[torch.from_numpy(~mask.dense().any(0))] == 0).all()


@pytest.mark.parametrize("softcap", [None, 1.0])
def test_parts_of_a_larger_softmax(kernel, softcap):
    mask = masks.build("shared_question", 256, documents=DOCUMENTS)
    q, k, v, dout = inputs(mask)
    cuts = [slice(0, 100), slice(100, 256)]
    plans = [kernel.plan(problem(mask.cut([(0, 256)], [(c.start, c.stop)]), softcap=softcap)) for c in cuts]
    out, lse = merge(*(kernel.forward(q, k[cut], v[cut], plan) for cut, plan in zip(cuts, plans, strict=True)))
    parts = [kernel.backward(dout, q, k[cut], v[cut], out, lse, p) for cut, p in zip(cuts, plans, strict=True)]
    got = (sum(p[0] for p in parts), torch.cat([p[1] for p in parts]), torch.cat([p[2] for p in parts]))
    for result, expected in zip(
        got, both_ways(Naive(), problem(mask, softcap=softcap), q, k, v, dout)[2:], strict=True
    ):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


def test_tensors_in_any_layout(kernel):
    mask = masks.build("causal", 200)
    q, k, v, dout = inputs(mask)
    plan, expected = kernel.plan(problem(mask)), both_ways(kernel, problem(mask), q, k, v, dout)
    wide = torch.cat([q, q], dim=1)[:, :4]  # heads of a wider tensor
    heads_first = k.transpose(0, 1).contiguous().transpose(0, 1)
    dim_apart = v.transpose(1, 2).contiguous().transpose(1, 2)
    out, lse = kernel.forward(wide, heads_first, dim_apart, plan)
    grads = kernel.backward(dout, wide, heads_first, dim_apart, out, lse.T.contiguous().T, plan)
    for result, wanted in zip((out, lse, *grads), expected, strict=True):
        torch.testing.assert_close(result, wanted)


def test_large_tensors_go_in_with_heads_first(kernel, monkeypatch):
    mask = masks.build("causal", 256)
    asked = problem(mask)
    monkeypatch.setattr(flex, "_INT32", 256 * 4 * 16)
    results = check(kernel, asked, inputs(mask))
    assert results[0].stride() == results[2].stride() == (16, 256 * 16, 1)  # like q, from which they are made
    assert results[3].stride() == (2 * 16, 16, 1)  # k is not as large
