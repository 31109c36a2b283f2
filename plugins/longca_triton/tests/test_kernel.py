"""The adapter around the launches: copies, the caller's buffers, and one plan for all."""

from __future__ import annotations

from longca import masks
from longca_triton.checking import (
    both_ways,
    check_buffers,
    check_parts,
    check_strides,
    cpu_problem,
    draw_tensors,
)

from .toy import Toy

PROBLEM = cpu_problem(masks.build("causal", seqlen=40), 4, 2)


def test_a_plan_knows_its_groups():
    assert Toy().plan(PROBLEM).group == 2


def test_inputs_of_any_strides():
    check_strides(PROBLEM, Toy())


def test_buffers_of_any_strides_are_filled():
    check_buffers(PROBLEM, Toy())


def test_the_out_and_lse_of_a_larger_softmax():
    check_parts(PROBLEM, Toy(), 15)


def test_each_launch_is_made_once():
    kernel = Toy()
    both_ways(kernel, PROBLEM, *draw_tensors(PROBLEM))
    assert [name for name, _ in kernel.launches.calls] == ["forward", "dkdv", "dq"]
