"""The checks find wrong results, and name them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from longca import masks
from longca_builtin.naive import Naive
from longca_triton.checking import (
    RESULTS,
    both_ways,
    check,
    check_parts,
    check_strides,
    check_unseen,
    compare,
    cpu_problem,
    draw_tensors,
)

from .toy import IN_USE, WRONG, Toy

PROBLEM = cpu_problem(masks.build("causal", seqlen=20), 2, 1)


class Contiguous(Naive):
    """Takes every q for a contiguous one."""

    def forward(self, q, k, v, plan, **buffers):
        return super().forward(q.as_strided(q.shape, torch.empty(q.shape).stride()), k, v, plan, **buffers)


@pytest.mark.parametrize(("kernel", "result"), [("forward", "out"), ("dkdv", "dk"), ("dq", "dq")])
def test_what_is_wrong_is_named(kernel, result):
    with pytest.raises(AssertionError, match=rf"^{result}: "):
        check(PROBLEM, Toy(replace(IN_USE, **{kernel: WRONG})))


@pytest.mark.parametrize("index", range(len(RESULTS)), ids=RESULTS)
def test_one_wrong_number_is_enough(index):
    expected = both_ways(Naive(), PROBLEM, *(x.double() for x in draw_tensors(PROBLEM)))
    results = [x.clone() for x in expected]
    compare(results, expected)
    results[index].view(-1)[7] += 0.01 * max(1.0, float(expected[index].abs().max()))
    with pytest.raises(AssertionError, match=rf"^{RESULTS[index]}: "):
        compare(results, expected)


def test_a_backward_of_its_own_out_and_lse_alone_is_no_part():
    class Own(Naive):
        def backward(self, dout, q, k, v, out, lse, plan, **buffers):
            return super().backward(dout, q, k, v, *self.forward(q, k, v, plan), plan, **buffers)

    check_parts(PROBLEM, Naive(), 8)
    with pytest.raises(AssertionError, match=r"^dq: "):
        check_parts(PROBLEM, Own(), 8)


def test_strides_that_are_taken_for_others():
    check_strides(PROBLEM, Naive())
    with pytest.raises(AssertionError, match=r"^out: "):
        check_strides(PROBLEM, Contiguous())


def test_results_that_nothing_sees():
    visible = torch.zeros(1, 20, 20, dtype=torch.bool)
    visible[:, 1:, 1:] = True
    out, lse, dq, dk, dv = (torch.ones(20, 2, 64), torch.ones(2, 20), *[torch.ones(20, n, 64) for n in (2, 1, 1)])
    lse[:, 0] = -torch.inf
    for x in (out, dq, dk, dv):
        x[0] = 0
    check_unseen((out, lse, dq, dk, dv), visible)
    for x in (out, lse, dq, dk, dv):
        x[(slice(None), 0) if x is lse else 0] = 7
        with pytest.raises(AssertionError):
            check_unseen((out, lse, dq, dk, dv), visible)
        x[(slice(None), 0) if x is lse else 0] = -torch.inf if x is lse else 0
