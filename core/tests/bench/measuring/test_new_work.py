"""Calls on new inputs: right kernels pass in every dtype, and repeated results or a wrong head do not."""

from random import Random

import pytest
import torch

from longca.kernels.base import torch_dtype
from longca.manifests import Device, Problem
from longca.masks import BlockSparseMask, build
from longca_bench.measuring.arena import Arena
from longca_bench.measuring.new_work import COMPARED, NewWork
from longca_bench.measuring.remote_kernel import Step
from longca_bench.verification import head_sample, new_inputs
from longca_bench.verification.inputs import draw_inputs
from longca_bench.verification.reference import reference
from longca_bench.verification.verify import lse_dtype
from longca_builtin.naive import Naive

MASKS = {
    "causal": lambda heads: build("causal", 100),
    "per head": lambda heads: BlockSparseMask(
        torch.rand(heads, 5, 5, generator=torch.manual_seed(0)).numpy() < 0.6,
        [*range(0, 101, 20)],
        [*range(0, 101, 20)],
    ),
}


def made(direction, dtype="float32", mask="causal", count=2, heads=(4, 2)):
    heads_q, heads_kv = heads
    problem = Problem(
        mask=MASKS[mask](heads_q), heads_q=heads_q, heads_kv=heads_kv, head_dim=16, dtype=dtype, device=Device("cpu"),
        direction=direction,
    )  # fmt: skip
    given, arena = draw_inputs(problem, 0), Arena(torch.device("cpu"))
    like, kernel = reference(problem, given).dtype, Naive()
    tensors = {"q": given.q.clone(), "k": given.k.clone(), "v": given.v.clone()}
    plan = kernel.plan(problem)
    if direction == "backward":
        forward = kernel.forward(**tensors, plan=plan)
        tensors = {"dout": given.dout.clone(), **tensors, **dict(zip(("out", "lse"), forward, strict=True))}
        names = {"dq": given.q, "dk": given.k, "dv": given.v}
        landing = {name: arena.like(x) for name, x in names.items()}
    else:
        landing = {"out": arena.like(given.q), "lse": arena.empty((heads_q, 100), lse_dtype(given.q))}
    work = NewWork(problem, given, like, Step(tensors, landing), arena, count, rough_lse=False)
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
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("portion", [1, 6400, 2**26])
def test_every_head_is_compared_whatever_the_reference_samples(direction, mask, portion, monkeypatch):
    monkeypatch.setattr(head_sample, "SAMPLED_PAIRS", 0)
    monkeypatch.setattr(new_inputs, "_ELEMENTS", portion)
    work, compute = made(direction, mask=mask, heads=(6, 3), count=1)
    assert answer(work, compute) == []
    right = dict(zip(work.steps[0].landing, compute(work.steps[0].tensors), strict=True))
    for head in range(3):
        places = {name: head if name in ("dk", "dv") else 2 * head for name in right}
        spoilt = {name: x.clone() for name, x in right.items()}
        for name, x in spoilt.items():
            (x[places[name]] if name == "lse" else x[:, places[name]]).mul_(1.5)
        found = answer(work, lambda tensors, spoilt=spoilt: spoilt.values())
        assert {each.tensor: each.head for each in found} == {f"{n} of new inputs": h for n, h in places.items()}


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("wrong", range(COMPARED))
def test_each_of_several_calls_is_compared_head_by_head(direction, mask, wrong):
    work, compute = made(direction, mask=mask, heads=(6, 3), count=COMPARED)
    calls = iter(range(COMPARED))

    def spoilt(tensors):
        results = [x.clone() for x in compute(tensors)]
        if next(calls) == wrong:
            results[-1][2] *= 1.5  # lse has heads first
            results[0][:, 2] *= 1.5
        return results

    names = {"forward": {"out": 2, "lse": 2}, "backward": {"dq": 2}}[direction]
    found = {each.tensor.split()[0]: each.head for each in answer(work, spoilt)}
    assert {name: found[name] for name in names} == names


def test_without_a_log_sum_exp_the_heads_of_gradients_of_keys_are_drawn_anew(monkeypatch):
    """Every head of dq and out is compared all the same."""
    monkeypatch.setattr(head_sample, "SAMPLED_PAIRS", 0)
    work, compute = made("backward", heads=(8, 4), count=1)
    tensors, right = work.steps[0].tensors, compute(work.steps[0].tensors)
    given = tensors["lse"].clone()
    tensors["lse"].fill_(torch.nan)

    def failed(seed, **factors):
        results = [x.clone() for x in right]
        for x, factor in zip(results, (factors.get(name) for name in ("dq", "dk", "dv")), strict=True):
            if factor is not None:
                x[:, factor] *= 1.5
        for there, result in zip(work.steps[0].landing.values(), results, strict=True):
            there.copy_(result)
        return {each.tensor.split()[0] for each in work.failures(without_lse=True, random=Random(seed))}

    assert not any(failed(seed) for seed in range(3))
    assert all(failed(0, dq=head) == {"dq"} for head in (0, 3, 7))
    seen = set()
    for seed in range(60):  # two of four heads are drawn
        if len(seen) < 2:
            seen.add(bool(failed(seed, dk=2)))
    assert seen == {False, True}
    tensors["lse"].copy_(given)
    assert all(failed(0, dk=head) == {"dk"} for head in range(4))


def test_a_forward_that_leaves_a_part_of_its_log_sum_exp_out_fails():
    work, compute = made("backward", count=1)
    work.steps[0].tensors["lse"][1, 7] = torch.nan
    found = answer(work, lambda tensors: compute({**tensors, "lse": tensors["lse"].nan_to_num(3.0)}))
    assert ("lse of new inputs", "not every element is finite, or was written") in [(f.tensor, f.note) for f in found]


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
