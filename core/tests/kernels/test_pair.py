"""Pairs: one kernel's forward and another's backward, against attention by a dense matrix."""

import pytest
import torch

import longca
from longca import masks
from longca.kernels.pair import Pair
from longca.manifests.pairs import halves
from longca_builtin.naive import Naive
from longca_builtin.sdpa import SDPA

from .cases import inputs, pattern_mask, problem, run, truth
from .reference import BOUNDS, Result, assert_close
from .toys import Counting, Differentiable

PAIRS = ("naive+sdpa", "sdpa+naive")
MADE = {"naive+sdpa": (Naive(), SDPA()), "sdpa+naive": (SDPA(), Naive()), "naive+toy": (Naive(), Differentiable())}


def pair(name):
    first, second = MADE[name]
    return Pair(first, lambda: second)


def attend(mask, kernel, dtype=torch.float64, attention=longca.attention):
    """The result of attention and autograd, and the inputs."""
    given = inputs(mask, 8, 2, dtype=dtype)
    qkv = [x.requires_grad_() for x in given[:3]]
    out, lse = attention(*qkv, mask, kernel=kernel, return_lse=True)
    return Result(out.detach(), lse, *torch.autograd.grad(out, qkv, given.dout)), given


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kernel", PAIRS)
@pytest.mark.parametrize("pattern", ["causal", "shared_question"])
def test_gradients_are_the_references(pattern, kernel, dtype):
    mask = pattern_mask(pattern)
    result, given = attend(mask, kernel, dtype)
    assert_close(result, truth(mask, given), BOUNDS[dtype])


def test_each_half_does_its_part_on_its_own_problem():
    first, second = Counting(), Counting()
    mask = pattern_mask("causal")
    given = inputs(mask, 4, 2)
    run(Pair(first, lambda: second), mask, given)
    assert first.planned + second.planned == list(halves(problem(mask, given)))
    assert (first.forwards, first.backwards) == (1, 0)
    assert (second.forwards, second.backwards) == (0, 1)


def test_a_plan_has_both_kernels_forms_and_bytes():
    mask = pattern_mask("shared_question")
    asked = problem(mask, inputs(mask, 4, 2))
    plan = pair("naive+sdpa").plan(asked)
    plans = [kernel.plan(half) for kernel, half in zip(MADE["naive+sdpa"], halves(asked), strict=True)]
    assert plan.problem is asked
    assert plan.form is masks.Form.DENSE, "that of the direction asked"
    assert plan.form_text == "row_intervals + dense"
    assert plan.backend == f"torch.matmul + {plans[1].backend}"
    assert plan.metadata_bytes == sum(each.metadata_bytes for each in plans) > 0
    assert plan.list_bytes == 0


def test_a_forward_plans_the_first_half_alone():
    def load():
        raise AssertionError("the backward kernel is not needed")

    mask = pattern_mask("causal")
    given = inputs(mask, 4, 2)
    plan = Pair(SDPA(), load).plan(problem(mask, given, "forward"))
    assert (plan.form_text, plan.second) == ("causal", None)
