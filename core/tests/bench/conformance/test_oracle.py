"""One kernel on one problem: `longca.testing.verify`, equal bits, and failures."""

import pytest
import torch

from longca.errors import UnsupportedError, VerificationError
from longca.manifests import Device
from longca.masks import build
from longca.testing import verify
from longca_bench.conformance.offer_variant import OfferVariant
from longca_bench.conformance.oracle import verify_repeats
from longca_bench.verification.inputs import draw_inputs
from longca_builtin.naive import Naive

from .bad_kernels import KERNELS, Base

CAUSAL = build("causal", 129)


def test_a_right_kernel():
    found = verify(Base(), CAUSAL)
    assert {finding.tensor for finding in found.findings} == {"out", "lse", "counts", "dq", "dk", "dv"}
    assert verify("naive", CAUSAL, direction="forward", dtype="bfloat16", heads=(3, 3), head_dim=40).passed
    assert verify("naive", CAUSAL, dtype="bfloat16", heads=(3, 3), head_dim=40, head_dim_v=24).passed


class WithoutMaximum(Naive):
    """Sums exp of scores in float32, as large as they are."""

    def forward(self, q, k, v, plan, **buffers):
        out, lse = super().forward(q, k, v, plan, **buffers)
        return out, lse.copy_(lse.exp().log())


class OverflowsFloat16(Naive):
    """Forms products of q and k in float16."""

    def forward(self, q, k, v, plan, **buffers):
        out, lse = super().forward(q, k, v, plan, **buffers)
        overflows = torch.einsum("ihd,jhd->ihj", q.float(), k.repeat_interleave(2, 1).float()).abs().amax(-1) > 65504
        return out.masked_fill_(overflows[..., None], torch.nan), lse


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_scores_beyond_the_range_of_exp(dtype):
    assert verify("sdpa", CAUSAL, dtype=dtype).passed
    with pytest.raises(VerificationError, match="WithoutMaximum is wrong: lse"):
        verify(WithoutMaximum(), CAUSAL, dtype=dtype)


def test_products_beyond_float16_are_a_limit_of_a_float16_kernel_that_forms_them():
    assert "float16's range" in verify(OverflowsFloat16(), CAUSAL, dtype="float16").limits[0]
    assert verify("naive", CAUSAL, dtype="float16").limits == ()
    with pytest.raises(VerificationError, match="OverflowsFloat16 is wrong: out"):
        verify(OverflowsFloat16(), CAUSAL, dtype="bfloat16")


class KnowsTheSeed(Base):
    """Draws its inputs when it plans, and computes with them whatever it gets."""

    def plan(self, problem):
        self.drawn = draw_inputs(problem, seed=0)
        return super().plan(problem)

    def forward(self, q, k, v, plan, **buffers):
        return super().forward(self.drawn.q, self.drawn.k, self.drawn.v, plan, **buffers)


def test_no_plan_knows_the_inputs_of_a_call():
    with pytest.raises(VerificationError, match="KnowsTheSeed is wrong: out"):
        verify(KnowsTheSeed(), CAUSAL, direction="forward")


def test_what_a_manifest_does_not_cover():
    with pytest.raises(UnsupportedError, match=r"online takes .*row_intervals|online"):
        verify("online", build("uniform_block_sparse", 128, block=64, kept=0.5, heads=4, seed=0))


def test_a_kernel_that_is_not_deterministic_is_a_finding(core):
    offer = core.manifest("naive").offers[-1]
    _, problem = OfferVariant(core, "naive", offer, "float32", "backward", Device("cpu")).problems()[0]
    assert verify_repeats(Naive(), problem, offer).passed
    found = verify_repeats(KERNELS["not_deterministic"](), problem)
    failed = {finding.tensor: finding.note for finding in found.failures}
    assert "out repeated" in failed
    assert "lse repeated" not in failed
    assert "other bits" in failed["out repeated"]
