"""Verification catches every way of being wrong that a global norm would pass."""

from dataclasses import replace

import pytest
import torch

from longca.masks import Slice, SliceMask, build
from longca_bench.verification.findings import check_values
from longca_bench.verification.reference import part_reference
from longca_bench.verification.sinks import WithSinks
from longca_bench.verification.verify import check_backward, check_counts, check_forward
from longca_builtin.naive import Naive
from longca_builtin.sdpa import SDPA


class Spoilt(Naive):
    """A right kernel whose results are spoilt before they are returned."""

    def __init__(self, forward=None, backward=None, inputs=None):
        self._forward, self._backward, self._inputs = forward, backward, inputs

    def forward(self, q, k, v, plan, *, out=None, lse=None):
        results = super().forward(q, k, v, plan, out=out, lse=lse)
        if self._inputs:
            self._inputs(q, k, v)
        return (self._forward(*results) or results) if self._forward else results

    def backward(self, *arguments, **buffers):
        results = super().backward(*arguments, **buffers)
        return (self._backward(*results) or results) if self._backward else results


def spoilt_forward(setup, spoil, **options):
    verification, _, _ = check_forward(Spoilt(forward=spoil), setup.plan, setup.inputs, setup.expected, **options)
    return verification


def failing(verification):
    return {finding.tensor for finding in verification.failures}


@pytest.mark.parametrize("kernel", [Naive(), SDPA()])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_right_kernels_pass(setup, kernel, dtype):
    made = setup(dtype=dtype)
    plan = kernel.plan(made.problem)
    found, out, lse = check_forward(kernel, plan, made.inputs, made.expected)
    found += check_backward(kernel, plan, made.inputs, out, lse, made.expected)
    found += check_counts(kernel, plan, made.inputs)
    assert found.passed, found.failures
    assert {finding.tensor for finding in found.findings} == {"out", "lse", "dq", "dk", "dv", "counts"}


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_sinks(setup, dtype):
    made, kernel = setup(dtype=dtype, sinks=True), WithSinks(SDPA())
    plan = kernel.plan(made.problem)
    found, out, lse = check_forward(kernel, plan, made.inputs, made.expected)
    found += check_backward(kernel, plan, made.inputs, out, lse, made.expected)
    found += check_counts(kernel, plan, made.inputs)
    assert found.passed, found.failures
    assert {finding.tensor for finding in found.findings} == {"out", "lse", "dq", "dk", "dv", "dsinks", "counts"}
    without, *results = check_forward(SDPA(), plan, made.inputs, made.expected)
    assert failing(without) == {"out", "lse"}
    assert "dsinks" in failing(check_backward(kernel, plan, made.inputs, *results, made.expected))


def test_one_wrong_row_is_named(setup):
    def spoil(out, lse):
        out[137, 2] *= 1.001

    (finding,) = spoilt_forward(setup(), spoil).failures
    assert (finding.tensor, finding.token, finding.head) == ("out", 137, 2)
    assert finding.error > finding.limit > 2 * finding.pytorch
    assert "token 137, head 2" in str(finding)


@pytest.mark.parametrize(("share", "passes"), [(0.9, True), (1.1, False)])
@pytest.mark.parametrize(("name", "pytorch"), [("out", 0.0), ("dq", 0.01), ("dk", 0.01), ("dv", 0.0)])
def test_a_row_may_be_twice_as_far_off_as_pytorch_and_a_few_ulps(setup, name, pytorch, share, passes):
    expected = setup().expected
    rows = replace(expected.rows[name], pytorch=torch.full_like(expected.rows[name].pytorch, pytorch))
    expected = replace(expected, rows={name: rows})
    limit = 2 * rows.pytorch[137, 1] + 32 * torch.finfo(torch.float32).eps * rows.spread[137, 1]
    result = rows.value.clone()
    result[137, 1, 3] += share * limit
    assert check_values({name: result.float()}, expected).passed is passes


def test_zeros_and_wrong_lse(setup):
    assert failing(spoilt_forward(setup(), lambda out, lse: (out.zero_(), lse)[2:])) == {"out"}
    assert failing(spoilt_forward(setup(), lambda out, lse: (lse.add_(1e-3), out)[2:])) == {"lse"}


@pytest.mark.parametrize(("dtype", "share", "passes"), [("bfloat16", 0.9, True), ("bfloat16", 1.5, False)])
def test_a_rough_lse_is_one_of_rounded_weights(setup, dtype, share, passes):
    def spoil(out, lse):
        lse[1, 40] += share * torch.finfo(getattr(torch, dtype)).eps / 2

    found = spoilt_forward(setup(dtype=dtype), spoil)
    assert failing(found) == {"lse"}, "others sum their weights as they are"
    assert spoilt_forward(setup(dtype=dtype), spoil, rough_lse=True).passed == passes


def test_lse_of_empty_rows(setup):
    made = setup(SliceMask([Slice(10, 300, 0, 300)], 300, 300))
    (finding,) = spoilt_forward(made, lambda out, lse: (lse.nan_to_num_(neginf=0.0),)[1:]).failures
    assert finding.tensor == "lse"
    assert "−∞" in finding.note


def test_skipped_tile_at_the_end(setup):
    made = setup(build("full", 1000), direction="forward", dtype="bfloat16")
    shorter = SliceMask([Slice(0, 1000, 0, 1000 - 16)], 1000, 1000)
    plan = made.kernel.plan(made.problem.with_mask(shorter))
    verification, out, _ = check_forward(made.kernel, plan, made.inputs, made.expected)
    assert failing(verification) == {"out", "lse"}
    norm = (out.double() - made.expected.rows["out"].value).norm() / made.expected.rows["out"].value.norm()
    assert norm < 0.2, "the whole looks almost right"
    assert failing(check_counts(made.kernel, plan, made.inputs)) == set(), "counts are of the plan's own mask"


def test_wrong_dk_alone(setup):
    made = setup()

    def spoil(dq, dk, dv):
        dk[250, 1] *= 1.01

    kernel = Spoilt(backward=spoil)
    _, out, lse = check_forward(made.kernel, made.plan, made.inputs, made.expected)
    (finding,) = check_backward(kernel, made.plan, made.inputs, out, lse, made.expected).failures
    assert (finding.tensor, finding.token, finding.head) == ("dk", 250, 1)


def test_wrong_gradient_of_an_exact_zero_row(setup):
    """The first query of a document sees one key: dq is exactly 0, and no relative error could be taken of it."""
    made = setup()

    def spoil(dq, dk, dv):
        dq[100] += 1e-4

    _, out, lse = check_forward(made.kernel, made.plan, made.inputs, made.expected)
    found = check_backward(Spoilt(backward=spoil), made.plan, made.inputs, out, lse, made.expected)
    assert failing(found) == {"dq"}


def test_counts_of_a_wrong_mask(setup):
    made = setup(build("causal", 300))

    class OffByOne(Naive):
        def forward(self, q, k, v, plan, **buffers):
            out, lse = super().forward(q, k, v, plan, **buffers)
            lse[:, 200] = torch.tensor(202.0).log()
            return out, lse

    (finding,) = check_counts(OffByOne(), made.plan, made.inputs).failures
    assert (finding.tensor, finding.token) == ("counts", 200)


def test_own_lse_where_a_larger_one_was_given(setup):
    """A backward that ignores the lse it is given is right alone, and wrong as a part."""
    made = setup()
    _, out, lse = check_forward(made.kernel, made.plan, made.inputs, made.expected)

    class OwnLse(Naive):
        def backward(self, dout, q, k, v, _out, _lse, plan, **buffers):
            return super().backward(dout, q, k, v, out, lse, plan, **buffers)

    assert check_backward(OwnLse(), made.plan, made.inputs, out, lse, made.expected).passed
    other = (torch.randn(300, 4, 32, dtype=torch.float64), torch.zeros(4, 300, dtype=torch.float64) + 4)
    part = part_reference(made.problem, made.inputs, other)
    whole = part.merged[0].float(), part.merged[1].float()
    assert check_backward(Naive(), made.plan, made.inputs, *whole, part).passed
    assert failing(check_backward(OwnLse(), made.plan, made.inputs, *whole, part)) == {"dq", "dk", "dv"}
