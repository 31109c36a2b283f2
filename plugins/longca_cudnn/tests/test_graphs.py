"""cuDNN itself: tests that the conformance suite lacks."""

from __future__ import annotations

import pytest
import torch

from longca import Problem, masks
from longca.errors import UnsupportedError
from longca.kernels.base import device_of
from longca.masks import Form, Slice, SliceMask
from longca.testing import verify
from longca_bench.verification.inputs import draw_inputs
from longca_cudnn import kernel as module
from longca_cudnn.kernel import CuDNN

pytestmark = pytest.mark.gpu


def problem(mask, **options):
    common = {"heads_q": 8, "heads_kv": 2, "head_dim": 64, "direction": "backward"}
    return Problem(mask=mask, device=device_of(torch.empty(1, device="cuda")), **{**common, **options})


def both_ways(kernel, asked, plan, inputs):
    out, lse = kernel.forward(inputs.q, inputs.k, inputs.v, plan)
    return out, lse, *kernel.backward(inputs.dout, inputs.q, inputs.k, inputs.v, out, lse, plan)


@pytest.mark.parametrize("pattern", ["full", "causal", "full_sliding_window"])
def test_equal_bits_where_they_are_asked_for(pattern):
    mask = masks.build(pattern, 2000, **({"window": 300} if "window" in pattern else {}))
    asked, kernel = problem(mask, deterministic=True), CuDNN()
    plan, inputs = kernel.plan(asked), draw_inputs(asked, 0)
    first = both_ways(kernel, asked, plan, inputs)
    for _ in range(8):
        again = both_ways(kernel, asked, plan, inputs.clone())
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


def test_windows_in_documents_apart():
    slices = [Slice(3, 500, 10, 507, -72, 7), Slice(510, 1000, 510, 1000, -79, 0)]
    mask = SliceMask(slices, 1100, 1050)
    assert mask.admits(Form.VARLEN)
    verify(CuDNN(), mask, dtype="bfloat16", heads=(8, 2))


def test_strided_inputs():
    for mask in (masks.build("causal", 300), masks.build("causal_document", 300, documents=[100, 200])):
        asked, kernel = problem(mask), CuDNN()
        plan, inputs = kernel.plan(asked), draw_inputs(asked, 0)
        expected = both_ways(kernel, asked, plan, inputs)
        q, k, v = torch.cat([inputs.q, inputs.k, inputs.v], 1).split([8, 2, 2], 1)
        out, lse = kernel.forward(q, k, v, plan)
        results = out, lse, *kernel.backward(inputs.dout, q, k, v, out, lse, plan)
        for result, wanted in zip(results, expected, strict=True):
            torch.testing.assert_close(result, wanted, rtol=2e-2, atol=2e-2)


def test_masks_that_change_every_step_build_nothing_new():
    kernel = CuDNN()
    lengths = [[1000, 1100, 1996], [1001, 1099, 1996], [990, 1110, 1996], [1096, 1020, 1980]]
    plans = [masks.build("causal_document", 4096, documents=x) for x in lengths]
    kernel.plan(problem(plans[0]))
    before = module._build.cache_info().misses
    for mask in plans[1:]:
        asked = problem(mask)
        both_ways(kernel, asked, kernel.plan(asked), draw_inputs(asked, 0))
    assert module._build.cache_info().misses == before


def test_a_refusal_gives_cudnns_reason():
    with pytest.raises(UnsupportedError, match=r"cuDNN .* refuses a dense backward of 300 × 300 tokens.*hidden_dim"):
        CuDNN().plan_as(problem(masks.build("causal", 300), head_dim=264), Form.CAUSAL)
