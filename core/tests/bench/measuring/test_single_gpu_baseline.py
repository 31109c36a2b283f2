"""What a strategy is held against: the kernel by itself."""

import pytest
import torch

from longca_bench.measuring.single_gpu_baseline import equal_share, verify_alone
from longca_builtin.naive import Naive

ROUGH = 0.9 * torch.finfo(torch.bfloat16).eps / 2


class RoughLse(Naive):
    """As far off as a sum of rounded weights may be; its backward knows."""

    def forward(self, *arguments, **buffers):
        out, lse = super().forward(*arguments, **buffers)
        return out, lse.add_(ROUGH)

    def backward(self, dout, q, k, v, out, lse, plan, **buffers):
        return super().backward(dout, q, k, v, out, lse - ROUGH, plan, **buffers)


@pytest.mark.parametrize("rough_lse", [False, True])
def test_a_rough_lse_passes_where_the_offer_says_so(setup, rough_lse):
    made = setup(dtype="bfloat16", direction="forward")
    found = verify_alone(RoughLse(), made.problem, made.inputs, made.expected, rough_lse=rough_lse)
    assert {finding.tensor: finding.passed for finding in found} == {"out": True, "lse": rough_lse}


def test_of_a_backward_its_gradients_are_found(setup):
    made = setup(dtype="bfloat16")
    found = verify_alone(RoughLse(), made.problem, made.inputs, made.expected, rough_lse=False)
    assert [(finding.tensor, finding.passed) for finding in found] == [("dq", True), ("dk", True), ("dv", True)]


@pytest.mark.parametrize(
    ("ranks", "share"), [(1, ((0, 4), (0, 2))), (2, ((0, 2), (0, 1))), (4, ((0, 1), (0, 1))), (3, None), (8, None)]
)
def test_an_equal_share_of_the_heads(setup, ranks, share):
    problem = setup().problem
    assert (problem.heads_q, problem.heads_kv) == (4, 2)
    found = equal_share(problem, ranks)
    assert (found and (found.heads_q, found.heads_kv)) == share
