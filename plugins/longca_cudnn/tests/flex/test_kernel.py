"""The adapter on a fake of cudnn.flex_attention: the arguments that it passes, and the results that it returns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from longca import Device, Problem, masks
from longca.parallel.merge import merge
from longca.testing import verify
from longca_bench.conformance.masks import small_masks, sparse_rows, uneven
from longca_bench.verification.inputs import draw_inputs
from longca_cudnn.flex import kernel as module
from longca_cudnn.flex.kernel import CuDNNFlex

from . import fake

MASKS = [*small_masks(), *uneven(), *sparse_rows()]
CPU = Device("cpu")


@pytest.fixture(autouse=True)
def _fake(monkeypatch):
    monkeypatch.setattr(module.importlib, "import_module", {"cudnn.flex_attention": fake}.__getitem__)


def problem(mask, heads=(8, 2), **options):
    common = {"head_dim": 16, "dtype": "bfloat16", "device": CPU, "direction": "backward"}
    return Problem(mask=mask, heads_q=heads[0], heads_kv=heads[1], **{**common, **options})


def both_ways(asked, inputs, kernel=None, plan=None):
    kernel = kernel or CuDNNFlex()
    plan = plan or kernel.plan(asked)
    out, lse = kernel.forward(inputs.q, inputs.k, inputs.v, plan)
    return out, lse, *kernel.backward(inputs.dout, inputs.q, inputs.k, inputs.v, out, lse, plan)


def assert_close(results, expected):
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result.double(), wanted.double(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("label", "mask"), MASKS, ids=[label for label, _ in MASKS])
def test_every_mask(label, mask):
    heads = {1: (8, 1), 3: (3, 3), 2: (4, 2), 8: (8, 1)}[mask.heads]
    verify(CuDNNFlex(), mask, dtype="bfloat16", device=CPU, heads=heads, head_dim=16)


@pytest.mark.parametrize("head_dim", [8, 256])
def test_strided_inputs_are_read_in_place_and_others_are_copied(head_dim):
    asked = problem(masks.build("causal", 77), head_dim=head_dim)
    inputs = draw_inputs(asked, 0)
    expected = both_ways(asked, inputs)
    q, k, v = torch.cat([inputs.q, inputs.k, inputs.v], 1).split([8, 2, 2], 1)
    odd = torch.zeros(77, 8, head_dim + 1, dtype=torch.bfloat16)[..., :head_dim]
    plan = CuDNNFlex().plan(asked)
    strided = replace(inputs, q=q, k=k, v=v, dout=odd.copy_(inputs.dout))
    assert_close(both_ways(asked, strided, plan=plan), expected)
    forward = next(key for key in plan.calls if key[0] == "FlexAttentionFwd")
    assert forward[1][1:] == q.stride()
    assert_close(
        both_ways(asked, replace(inputs, dout=inputs.dout[:1, :1].expand(77, 8, -1))),
        both_ways(asked, replace(inputs, dout=inputs.dout[:1, :1].expand(77, 8, -1).contiguous())),
    )


def test_buffers_of_any_layout_are_filled():
    asked = problem(masks.build("causal", 203, seqlen_k=150))
    inputs, kernel = draw_inputs(asked, 0), CuDNNFlex()
    expected = both_ways(asked, inputs)
    plan = kernel.plan(asked)

    def strange(like):
        return torch.full((*like.shape[:-1], 2 * like.shape[-1]), torch.nan, dtype=like.dtype)[..., ::2]

    def within(like):
        return torch.full((*like.shape[:-1], 2 * like.shape[-1]), torch.nan, dtype=like.dtype)[..., : like.shape[-1]]

    for shape in (torch.empty_like, strange, within, lambda like: torch.empty_like(like.mT.contiguous()).mT):
        out, lse, dq, dk, dv = (shape(like) for like in expected)
        results = kernel.forward(inputs.q, inputs.k, inputs.v, plan, out=out, lse=lse)
        results += kernel.backward(inputs.dout, inputs.q, inputs.k, inputs.v, out, lse, plan, dq=dq, dk=dk, dv=dv)
        assert all(result is buffer for result, buffer in zip(results, (out, lse, dq, dk, dv), strict=True))
        assert_close(results, expected)


def test_the_backward_takes_the_results_of_a_larger_softmax():
    whole = problem(masks.build("full", 130, seqlen_k=203))
    inputs, kernel, parts = draw_inputs(whole, 0), CuDNNFlex(), []
    for keys in (slice(0, 90), slice(90, 203)):
        asked = problem(masks.build("full", 130, seqlen_k=keys.stop - keys.start))
        parts.append((keys, kernel.plan(asked)))
    results = [kernel.forward(inputs.q, inputs.k[keys], inputs.v[keys], plan) for keys, plan in parts]
    out, lse = merge(*((out.float(), lse) for out, lse in results))
    grads = [
        kernel.backward(inputs.dout, inputs.q, inputs.k[keys], inputs.v[keys], out.bfloat16(), lse, plan)
        for keys, plan in parts
    ]
    merged = sum(dq for dq, _, _ in grads), *(torch.cat([grad[i] for grad in grads]) for i in (1, 2))
    assert_close((out, lse, *merged), both_ways(whole, inputs))
