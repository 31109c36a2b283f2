"""flex_flash against float64 attention. On the CPU FlexAttention's operators compute densely, after FLASH's checks."""

from __future__ import annotations

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from longca import Device, Problem, masks
from longca.masks import Slice, SliceMask
from longca.testing import verify
from longca_builtin.naive import Naive
from longca_flex.flash import FlexFlash

CPU = Device("cpu")
DOCUMENTS = [70, 1, 128, 57]
MASKS = {
    "full": masks.build("full", 300, seqlen_k=200),
    "causal": masks.build("causal", 256),
    "odd lengths": masks.build("causal_document", 256 + 13, documents=[*DOCUMENTS, 13]),
    "two intervals": masks.build("shared_question", 256, documents=DOCUMENTS),
    "one block": masks.build("causal", 77),
    "few keys": masks.build("full", 300, seqlen_k=5),
    "blocks": masks.build("uniform_block_sparse", 400, block=64, kept=0.5, heads=1, seed=1),
    "holes": SliceMask([Slice(40, 100, 30, 190, lo=-90, hi=60), Slice(110, 190, 100, 101)], 200, 200),
    "nothing": SliceMask([], 130, 140),
}


class Flash:
    """FlexAttention's operators with the checks of the backend FLASH. Their log-sum-exp is a natural logarithm."""

    def __init__(self):
        self.forward, self.backward = (
            getattr(torch.ops.higher_order, name) for name in ("flex_attention", "flex_attention_backward")
        )
        self.calls = []

    def flex_attention(self, q, k, v, score, block_mask, scale, options, *buffers):
        self._check("forward", (q, k, v), block_mask, options, buffers, by_key=False)
        out, lse, most = self.forward(q, k, v, score, block_mask, scale, options, *buffers)
        return out, lse * math.log(2), most

    def flex_attention_backward(
        self, q, k, v, out, lse, dout, dlse, score, joint, block_mask, scale, options, *buffers
    ):
        self._check("backward", (q, k, v, out, dout), block_mask, options, buffers, by_key=True)
        assert lse.dtype == torch.float32
        assert lse.is_contiguous()
        assert dlse is None
        tail = (block_mask, scale, options, *buffers)
        return self.backward(q, k, v, out, lse / math.log(2), dout, dlse, score, joint, *tail)

    def _check(self, name, tensors, block_mask, options, buffers, *, by_key):
        assert options["BACKEND"] == "FLASH"
        assert "FORCE_USE_FLEX_ATTENTION" not in options
        assert not options["OUTPUT_MAX"]
        if isinstance(tensors[0], FakeTensor):
            return
        self.calls.append(name)
        for x in tensors:
            assert x.stride(3) == 1
            assert all(place * x.element_size() % 16 == 0 for place in (x.storage_offset(), *x.stride()[1:3]))
        assert block_mask[-3:-1] == (128, 128)
        queries, keys = (-(-x.shape[2] // 128) for x in tensors[:2])
        own, other = (keys, queries) if by_key else (queries, keys)
        first = 6 if by_key else 2
        for place in (first, first + 2):
            counts, indices = block_mask[place : place + 2]
            assert counts.shape == (1, 1, own)
            assert indices.shape[:3] == (1, 1, own)
            assert indices.shape[3] <= other
            assert counts.dtype == indices.dtype == torch.int32
        assert buffers[0] == ()
        assert all(len(bound) % 128 == 0 for bound in buffers[1])


@pytest.fixture
def flash(monkeypatch):
    """The operators with the backend's checks, and a kernel whose functions are not compiled."""
    found = Flash()
    for name in ("flex_attention", "flex_attention_backward"):
        monkeypatch.setattr(torch.ops.higher_order, name, getattr(found, name))
    torch._dynamo.reset()
    yield found, FlexFlash("eager")
    torch._dynamo.reset()


def problem(mask, direction="backward", **changes):
    asked = {"heads_q": 4, "heads_kv": 2, "head_dim": 16, "dtype": "float32", "device": CPU}
    return Problem(mask=mask, direction=direction, **{**asked, **changes})


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MASKS)
def test_masks(flash, name):
    operators, kernel = flash
    verify(kernel, MASKS[name], head_dim=16, device=CPU)
    assert {"forward", "backward"} <= set(operators.calls)


def test_tensors_in_any_layout_and_a_scale(flash):
    _, kernel = flash
    asked = problem(masks.build("causal", 200), softmax_scale=0.5)
    random = torch.Generator().manual_seed(0)
    q, dout = (torch.randn(200, 4, 16, generator=random) for _ in range(2))
    k, v = (torch.randn(200, 2, 16, generator=random) for _ in range(2))
    wide = torch.cat([q, q], dim=1)[:, 4:]
    odd = torch.zeros(200, 2, 17)[..., :16].copy_(k)
    apart = v.transpose(1, 2).contiguous().transpose(1, 2)
    plan, book = kernel.plan(asked), Naive().plan(asked)
    out, lse = kernel.forward(wide, odd, apart, plan)
    expected = Naive().forward(q, k, v, book)
    found = kernel.backward(dout, wide, odd, apart, out, lse.T.contiguous().T, plan)
    wanted = Naive().backward(dout, q, k, v, *expected, book)
    for one, other in zip((out, lse, *found), (*expected, *wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", MASKS)
def test_the_backend_of_a_plan(name, direction):
    asked = problem(MASKS[name], direction)
    plan = FlexFlash("eager").plan(asked)
    assert plan.backend == "flex_attention, FLASH"
