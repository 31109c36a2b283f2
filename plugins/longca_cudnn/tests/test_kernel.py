"""The adapter on emulated graphs: the arguments that it passes to cuDNN, and the results that it returns."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from longca import Device, Problem, masks
from longca.kernels.ahead import Prefetch
from longca.masks import Form, Slice, SliceMask
from longca.parallel.merge import merge
from longca.testing import verify
from longca_bench.conformance.masks import sparse_rows, uneven
from longca_bench.verification.inputs import draw_inputs
from longca_builtin.naive import Naive
from longca_cudnn import kernel as module

from .emulated import FORMS, EmulatedCuDNN, EmulatedGraph

DOCUMENTS = (1, 64, 1, 1, 77, 59)
TAKEN = [
    *((label, mask) for label, mask in (*uneven(), *sparse_rows()) if mask.heads == 1),
    ("sliding window, more queries", masks.build("full_sliding_window", 203, seqlen_k=77, window=40)),
    ("sliding window, fewer queries", masks.build("causal_sliding_window", 77, seqlen_k=203, window=40)),
    ("documents", masks.build("causal_document", 203, documents=DOCUMENTS)),
    ("documents apart", SliceMask([Slice(10, 60, 0, 90), Slice(120, 203, 150, 203)], 203, 203)),
    ("windows in documents", SliceMask([Slice(0, 60, 0, 60, -9, 0), Slice(60, 203, 60, 203, -9, 0)], 203, 203)),
]
TAKEN = [(label, mask) for label, mask in TAKEN if any(mask.admits(form) for form in FORMS)]


@pytest.fixture(autouse=True)
def specs(monkeypatch):
    """Replaces cuDNN's graphs by emulated ones. Returns the list of requested specs."""
    asked = []

    def emulated(device, spec):
        asked.append(spec)
        return EmulatedGraph(spec)

    monkeypatch.setattr(module, "built", emulated)
    return asked


def problem(mask, heads=(8, 2), **options):
    common = {"head_dim": 16, "dtype": "float64", "device": Device("cpu"), "direction": "backward"}
    return Problem(mask=mask, heads_q=heads[0], heads_kv=heads[1], **{**common, **options})


def both_ways(kernel, asked, inputs, plan=None):
    plan = plan or kernel.plan(asked)
    out, lse = kernel.forward(inputs.q, inputs.k, inputs.v, plan)
    return out, lse, *kernel.backward(inputs.dout, inputs.q, inputs.k, inputs.v, out, lse, plan)


def assert_close(results, expected):
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result.double(), wanted.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("label", "mask"), TAKEN, ids=[label for label, _ in TAKEN])
def test_every_mask_it_takes(label, mask):
    verify(EmulatedCuDNN(), mask, device=Device("cpu"), heads=(8, 2), head_dim=16, head_dim_v=24)


@pytest.mark.parametrize("heads", [(8, 1), (3, 3), (1, 1)])
@pytest.mark.parametrize("form", [Form.CAUSAL, Form.VARLEN])
def test_strided_inputs_are_read_where_they_lie_by_dense_graphs_alone(form, heads, specs):
    asked = problem(masks.build("causal", 203), heads)
    inputs = draw_inputs(asked, 0)
    packed = torch.cat([inputs.q, inputs.k, inputs.v], 1)
    q, k, v = packed.split([heads[0], heads[1], heads[1]], 1)
    odd = torch.zeros(203, heads[0], 17, dtype=torch.float64)[..., :16]  # rows that a 16-byte load cannot read
    strided = replace(inputs, q=q, k=k, v=v, dout=odd.copy_(inputs.dout))
    kernel = EmulatedCuDNN()
    assert_close(both_ways(kernel, asked, strided, kernel.plan_as(asked, form)), both_ways(Naive(), asked, inputs))
    rows = [packed.shape[1]] * 3 if form is Form.CAUSAL else [heads[0], heads[1], heads[1]]
    assert {spec.strides[:3] for spec in specs[2:]} == {tuple((row * 16, 16) for row in rows)}
    assert specs[-1].strides[4] == (heads[0] * 16, 16)


@pytest.mark.parametrize("form", [Form.CAUSAL, Form.VARLEN])
def test_buffers_of_any_layout_are_filled(form):
    asked = problem(masks.build("causal", 203, seqlen_k=150))
    inputs, kernel = draw_inputs(asked, 0), EmulatedCuDNN()
    expected = both_ways(Naive(), asked, inputs)

    def strange(like):
        return torch.full((*like.shape[:-1], 2 * like.shape[-1]), torch.nan, dtype=like.dtype)[..., ::2]

    plan = kernel.plan_as(asked, form)
    for shape in (torch.empty_like, strange, lambda like: torch.empty_like(like.mT.contiguous()).mT):
        out, lse, dq, dk, dv = (shape(like) for like in expected)
        results = kernel.forward(inputs.q, inputs.k, inputs.v, plan, out=out, lse=lse)
        results += kernel.backward(inputs.dout, inputs.q, inputs.k, inputs.v, out, lse, plan, dq=dq, dk=dk, dv=dv)
        assert all(result is buffer for result, buffer in zip(results, (out, lse, dq, dk, dv), strict=True))
        assert_close(results, expected)


@pytest.mark.parametrize("form", [Form.FULL, Form.VARLEN])
def test_the_backward_takes_the_results_of_a_larger_softmax(form):
    whole = problem(masks.build("full", 130, seqlen_k=203))
    inputs, kernel = draw_inputs(whole, 0), EmulatedCuDNN()
    ranges, parts = [slice(0, 90), slice(90, 203)], []
    for keys in ranges:
        asked = problem(masks.build("full", 130, seqlen_k=keys.stop - keys.start))
        parts.append((keys, kernel.plan_as(asked, form)))
    results = [kernel.forward(inputs.q, inputs.k[keys], inputs.v[keys], plan) for keys, plan in parts]
    out, lse = merge(*((out.float(), lse) for out, lse in results))
    grads = [
        kernel.backward(inputs.dout, inputs.q, inputs.k[keys], inputs.v[keys], out.double(), lse, plan)
        for keys, plan in parts
    ]
    merged = sum(dq for dq, _, _ in grads), *(torch.cat([grad[i] for grad in grads]) for i in (1, 2))
    assert_close((out, lse, *merged), both_ways(Naive(), whole, inputs))


def test_what_is_planned_ahead_is_built_by_its_call(monkeypatch):
    built = []
    monkeypatch.setattr(module, "built", lambda device, spec: built.append(spec.direction))
    problem = Problem(mask=masks.build("full", 128), heads_q=2, direction="backward", device=Device("cuda", (9, 0)))
    ahead = Prefetch(lambda: SimpleNamespace(plan=module.CuDNN().plan_as(problem, Form.FULL)), torch.device("cpu"))
    ahead.wait()
    assert built == []
    assert ahead.taken().plan.batch == 1
    module.CuDNN().plan_as(problem, Form.FULL)
    assert built == ["forward", "backward"]
