"""One kernel on one problem: `longca.testing.verify`, equal bits, and failures."""

import pytest

from longca.errors import UnsupportedError, VerificationError
from longca.manifests import Device
from longca.masks import build
from longca.testing import verify
from longca_bench.conformance.oracle import verify_repeats
from longca_bench.conformance.subject import Subject
from longca_bench.verification.inputs import draw_inputs
from longca_builtin.naive import Naive

from .bad_kernels import KERNELS, Base

CAUSAL = build("causal", 129)


def test_a_right_kernel():
    found = verify(Base(), CAUSAL)
    assert {finding.tensor for finding in found.findings} == {"out", "lse", "counts", "dq", "dk", "dv"}
    assert verify("naive", CAUSAL, direction="forward", dtype="bfloat16", heads=(3, 3), head_dim=40).passed


@pytest.mark.parametrize("name", ["zeros", "wrong_dk", "leaves_output"])
def test_a_wrong_one(name):
    with pytest.raises(VerificationError, match=f"{KERNELS[name].__name__} is wrong"):
        verify(KERNELS[name](), CAUSAL)


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
    problem = Subject(core, "naive", offer, "float32", "backward", Device("cpu")).problem
    assert verify_repeats(Naive(), problem, offer).passed
    found = verify_repeats(KERNELS["not_deterministic"](), problem)
    failed = {finding.tensor: finding.note for finding in found.failures}
    assert "out repeated" in failed
    assert "lse repeated" not in failed
    assert "other bits" in failed["out repeated"]
