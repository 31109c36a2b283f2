"""Calls on new inputs: right kernels pass in every dtype and with sampled heads, and repeated results do not."""

from random import Random

import pytest
import torch

from longca.kernels.base import torch_dtype
from longca.manifests import Device, Problem
from longca.masks import BlockSparseMask, build
from longca_bench.measuring.arena import Arena
from longca_bench.measuring.new_work import NewWork
from longca_bench.measuring.remote_kernel import Step
from longca_bench.verification.head_sample import HeadSample
from longca_bench.verification.inputs import draw_inputs
from longca_bench.verification.reference import reference
from longca_bench.verification.verify import lse_dtype
from longca_builtin.naive import Naive

MASKS = {
    "causal": lambda: build("causal", 100),
    "per head": lambda: BlockSparseMask(
        torch.rand(4, 5, 5, generator=torch.manual_seed(0)).numpy() < 0.6, [*range(0, 101, 20)], [*range(0, 101, 20)]
    ),
}


def made(direction, dtype="float32", mask="causal", count=2):
    problem = Problem(
        mask=MASKS[mask](), heads_q=4, heads_kv=2, head_dim=16, dtype=dtype, device=Device("cpu"), direction=direction
    )
    given, arena = draw_inputs(problem, 0), Arena(torch.device("cpu"))
    expected, kernel = reference(problem, given), Naive()
    tensors = {"q": given.q.clone(), "k": given.k.clone(), "v": given.v.clone()}
    plan = kernel.plan(problem)
    if direction == "backward":
        forward = kernel.forward(**tensors, plan=plan)
        tensors = {"dout": given.dout.clone(), **tensors, **dict(zip(("out", "lse"), forward, strict=True))}
        names = {"dq": given.q, "dk": given.k, "dv": given.v}
        landing = {name: arena.like(x) for name, x in names.items()}
    else:
        landing = {"out": arena.like(given.q), "lse": arena.empty((4, 100), lse_dtype(given.q))}
    work = NewWork(problem, given, expected, Step(tensors, landing), arena, count, rough_lse=False)
    draw(work, kernel, plan)
    return work, lambda tensors: getattr(kernel, direction)(**tensors, plan=plan)


def draw(work, kernel, plan):
    work.draw()
    forwards = work.forwards
    for step in forwards:
        for there, result in zip(step.landing.values(), kernel.forward(**step.tensors, plan=plan), strict=True):
            there.copy_(result)
    if forwards:
        work.draw_dout()
    work.empty()


def answer(work, results_of):
    for step in work.steps:
        for there, result in zip(step.landing.values(), results_of(step.tensors), strict=True):
            there.copy_(result)
    return work.failures(without_lse=False, random=Random(0))


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_right_results_pass(direction, mask, dtype):
    work, compute = made(direction, dtype, mask)
    assert torch_dtype(dtype) == work.steps[0].tensors["q"].dtype
    assert answer(work, compute) == []


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_right_results_of_sampled_heads_pass_and_wrong_ones_have_their_place(direction, monkeypatch):
    sample = HeadSample((1,), (2, 3))
    monkeypatch.setattr("longca_bench.verification.reference.sample_heads", lambda problem, turn: sample)
    work, compute = made(direction)
    monkeypatch.undo()
    assert answer(work, compute) == []
    found = answer(work, lambda tensors: [x * 2 for x in compute(tensors)])
    assert {finding.head for finding in found} <= {1, 2, 3}
    assert {finding.tensor.partition(" ")[0] for finding in found} == set(work.steps[0].landing)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_results_of_other_inputs_fail_in_each_tensor(direction):
    work, compute = made(direction)
    old = compute(work.steps[0].tensors)
    work.draw()
    if direction == "backward":
        work.draw_dout()
    found = answer(work, lambda tensors: old)
    stale = () if direction == "forward" else ("out", "lse")  # no forward has met the new inputs
    names = (*work.steps[0].landing, *stale)
    assert {finding.tensor for finding in found} == {f"{name} of new inputs" for name in names}


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_input_is_new(direction):
    work, _ = made(direction)
    for name, new in work.steps[0].tensors.items():
        if name not in ("out", "lse"):
            assert not torch.equal(new, work.steps[1].tensors[name])
            assert new.data_ptr() != work.steps[1].tensors[name].data_ptr()


def test_an_element_that_was_not_written_fails():
    work, compute = made("forward", count=1)
    right = compute(work.steps[0].tensors)
    right[0][99, 3, 15] = torch.nan
    assert "not every element" in str(answer(work, lambda tensors: right)[0])


def test_a_missing_log_sum_exp_fails_only_if_it_was_promised():
    work, compute = made("forward", count=1)
    nothing = answer(work, lambda tensors: (compute(tensors)[0], torch.full((4, 100), torch.nan)))
    assert {finding.tensor for finding in nothing} == {"lse of new inputs"}
    assert work.failures(without_lse=True, random=Random(0)) == []
