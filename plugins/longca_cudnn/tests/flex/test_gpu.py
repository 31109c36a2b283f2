"""cudnn_flex itself: tests that the conformance suite lacks. Each kernel takes seconds to compile."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("cudnn.flex_attention", reason="no frontend of cuDNN with open kernels is installed")

from longca import Problem, masks
from longca.manifests.devices import current_device
from longca_bench.verification.inputs import draw_inputs
from longca_cudnn.flex.kernel import CuDNNFlex

pytestmark = pytest.mark.gpu


def problem(mask, heads=(8, 1), **options):
    common = {"head_dim": 128, "device": current_device(), "direction": "backward"}
    return Problem(mask=mask, heads_q=heads[0], heads_kv=heads[1], **{**common, **options})


def both_ways(kernel, inputs, plan):
    out, lse = kernel.forward(inputs.q, inputs.k, inputs.v, plan)
    return out, lse, *kernel.backward(inputs.dout, inputs.q, inputs.k, inputs.v, out, lse, plan)


@pytest.mark.parametrize("pattern", ["shared_question", "causal"])
def test_equal_bits_where_they_are_asked_for(pattern):
    asked, kernel = problem(masks.sample(pattern, 4096, seed=0), deterministic=True), CuDNNFlex()
    plan, inputs = kernel.plan(asked), draw_inputs(asked, 0)
    first = both_ways(kernel, inputs, plan)
    for _ in range(8):
        again = both_ways(kernel, inputs.clone(), plan)
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


def test_slices_of_a_fused_projection_are_read_in_place():
    asked, kernel = problem(masks.build("causal_document", 1003, documents=[500, 503])), CuDNNFlex()
    plan, inputs = kernel.plan(asked), draw_inputs(asked, 0)
    expected = both_ways(kernel, inputs, plan)
    q, k, v = torch.cat([inputs.q, inputs.k, inputs.v], 1).split([8, 1, 1], 1)
    results = both_ways(kernel, replace(inputs, q=q, k=k, v=v), plan)
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, wanted, rtol=2e-2, atol=2e-2)


def test_a_cuda_graph():
    asked, kernel = problem(masks.build("causal", 1024)), CuDNNFlex()
    plan, inputs = kernel.plan(asked), draw_inputs(asked, 0)
    expected = both_ways(kernel, inputs, plan)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = both_ways(kernel, inputs, plan)
    for result in results:
        result.fill_(torch.nan)
    graph.replay()
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, wanted, rtol=2e-2, atol=2e-2)
