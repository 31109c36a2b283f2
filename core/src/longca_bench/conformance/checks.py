"""The checks: what every offer of a kernel is held to, each under a name of its own.

A check takes a `Subject` and returns where all is well; it raises `VerificationError` where the kernel is wrong, and
`NotApplicableError` where there is nothing to ask. Whatever else a kernel raises goes through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace

import torch
from torch import Tensor

from longca.errors import VerificationError
from longca.manifests import Problem
from longca_bench.conformance.masks import has_empty_rows, sparse_rows, uneven
from longca_bench.conformance.offers import verify_problem
from longca_bench.conformance.subject import NotApplicableError, Subject, buffers_for, oracle, run
from longca_bench.verification.reference import reference

__all__ = ["CHECKS", "RUNS"]

RUNS = 24  # a kernel that is wrong in one run of ten is caught with a probability above 90 %
_SEEDS = 3
_SHORT = 2048  # tokens: all masks but those that are taken for being long


def right(subject: Subject) -> None:
    """Right on the masks that `longca verify` takes: float64 attention, 8:1, 3:3 and 4:2 heads, counts,
    composition."""
    _verify_all(subject, [(label, p) for label, p in subject.problems() if not has_empty_rows(p.concrete_mask)])


def uneven_lengths(subject: Subject) -> None:
    """Right where the last tile holds a single token."""
    _verify_all(subject, subject.problems(uneven()))


def empty_rows(subject: Subject) -> None:
    """Right where queries see nothing: out is 0 and lse −∞."""
    _verify_all(subject, subject.problems(sparse_rows()))


def poisoned_buffers(subject: Subject) -> None:
    """Buffers passed in are filled to the last element, and are what is returned."""
    inputs, _ = oracle(subject.problem, 0)
    buffers = buffers_for(inputs, subject.direction)
    results = run(subject.kernel, subject.kernel.plan(subject.problem), inputs.clone(), buffers)
    for name, result in results.items():
        if result.data_ptr() != buffers[name].data_ptr():
            raise VerificationError(f"{subject.name}: {name} was returned, but the buffer passed in was not filled")
        if missing := int(buffers[name].isnan().sum()):
            raise VerificationError(f"{subject.name}: {missing} elements of {name} were not written, or are NaN")


def contract(subject: Subject) -> None:
    """Results have the contract's shapes, dtypes and device, and lie in memory of their own."""
    original, _ = oracle(subject.problem, 0)
    inputs = original.clone()
    wanted = buffers_for(inputs, subject.direction)
    results = run(subject.kernel, subject.kernel.plan(subject.problem), inputs)
    for name, result in results.items():
        got, asked = (f"{tuple(x.shape)} {x.dtype} on {x.device}" for x in (result, wanted[name]))
        if got != asked:
            raise VerificationError(f"{subject.name}: {name} is {got}; the contract is {asked}")
    owners = {_memory(getattr(inputs, field.name)): field.name for field in fields(inputs)}
    for name, result in results.items():
        if owner := owners.get(_memory(result)):
            raise VerificationError(f"{subject.name}: {name} shares its memory with {owner}")
        owners[_memory(result)] = name


def inputs_unchanged(subject: Subject) -> None:
    """What is passed in stays as it is: q, k, v and dout, and the out and lse that the backward gets."""
    original, _ = oracle(subject.problem, 0)
    inputs, kernel = original.clone(), subject.kernel
    plan = kernel.plan(subject.problem)
    out, lse = kernel.forward(inputs.q, inputs.k, inputs.v, plan)
    before = {"out": out.clone(), "lse": lse.clone()}
    if subject.direction == "backward":
        kernel.backward(inputs.dout, inputs.q, inputs.k, inputs.v, out, lse, plan)
    before |= {field.name: getattr(original, field.name) for field in fields(original)}
    after = {"out": out, "lse": lse, **{field.name: getattr(inputs, field.name) for field in fields(inputs)}}
    if changed := [name for name, value in before.items() if not _same_bits(value, after[name])]:
        raise VerificationError(f"{subject.name} changed its inputs: {', '.join(changed)}")


def strided_inputs(subject: Subject) -> None:
    """Right where q, k and v are slices of larger tensors, as those of a fused projection are."""
    problems = [problem for _, problem in subject.problems()]
    short = [problem for problem in problems if _is_short(problem)] or problems[:1]
    problem = max(short, key=lambda p: len(p.concrete_mask.head(0).array))  # of several documents, where that can be
    original, expected = oracle(problem, 0)
    wider = original.q.new_full((original.q.shape[0], problem.heads_q + 1, problem.head_dim), torch.nan)
    q = wider[:, :-1].copy_(original.q)
    k, v = torch.cat([original.k, original.v], 1).split(problem.num_heads_kv, 1)
    inputs = replace(original.clone(), q=q, k=k, v=v)
    results = run(subject.kernel, subject.kernel.plan(problem), inputs)
    subject.hold(results, expected, f"{problem.concrete_mask.label}, of slices of larger tensors")


def repeated(subject: Subject) -> None:
    """Right in each of many runs, on several inputs: a race shows itself in some."""
    plan = subject.kernel.plan(subject.problem)
    for index in range(RUNS):
        inputs, expected = oracle(subject.problem, index % _SEEDS)
        subject.hold(run(subject.kernel, plan, inputs.clone()), expected, f"run {index + 1} of {RUNS}")


def deterministic(subject: Subject) -> None:
    """Equal inputs give equal bits where the offer says so and the problem asks for it, wherever they lie in memory."""
    if not subject.offer.deterministic:
        raise NotApplicableError("the offer does not say that it is deterministic")
    original, _ = oracle(subject.problem, 0)
    plan = subject.kernel.plan(replace(subject.problem, deterministic=True))
    copies = [original.clone() for _ in range(4)]  # all alive at once, so that none lies where another did
    first = run(subject.kernel, plan, copies[0])
    for index, inputs in enumerate(copies[1:], 1):
        again = run(subject.kernel, plan, inputs)
        if differing := [name for name, value in first.items() if not _same_bits(value, again[name])]:
            raise VerificationError(
                f"{subject.name} says it is deterministic, but run {index + 1} "
                f"gave other bits of {', '.join(differing)}"
            )


def fresh_answers(subject: Subject) -> None:
    """Other values in the same memory give other answers: each input in turn is refilled, and the buffers are kept."""
    problem, kernel = subject.problem, subject.kernel
    original, _ = oracle(problem, 0)
    other, _ = oracle(problem, 1)
    inputs, plan, buffers = original.clone(), kernel.plan(problem), buffers_for(original, subject.direction)
    run(kernel, plan, inputs, buffers)
    for name in ("q", "k", "v", "dout"):
        getattr(inputs, name).copy_(getattr(other, name))
        for buffer in buffers.values():
            buffer.fill_(torch.nan)
        expected = reference(problem, inputs)
        subject.hold(run(kernel, plan, inputs, buffers), expected, f"after {name} was refilled in place")


def reused_plan(subject: Subject) -> None:
    """A plan has its offer's form, and serves many calls, whatever was planned and run in between."""
    kernel, problems = subject.kernel, [problem for _, problem in subject.problems()]
    plan = kernel.plan(problems[0])
    if plan.form is not subject.offer.form:
        raise VerificationError(f"{subject.name}: the plan's form is {plan.form}, the offer's {subject.offer.form}")
    if plan.problem != problems[0]:
        raise VerificationError(f"{subject.name}: the plan's problem is not the one that was planned for")
    for seed, between in enumerate((problems[0], problems[-1], problems[0])):
        run(kernel, plan if between is problems[0] else kernel.plan(between), oracle(between, seed)[0].clone())
        inputs, expected = oracle(problems[0], seed)
        subject.hold(run(kernel, plan, inputs.clone()), expected, f"call {2 * seed + 2} with one plan")


#: Every check by its name, as it stands in test ids.
CHECKS: dict[str, Callable[[Subject], None]] = {
    check.__name__: check
    for check in (
        right,
        uneven_lengths,
        empty_rows,
        poisoned_buffers,
        contract,
        inputs_unchanged,
        strided_inputs,
        repeated,
        deterministic,
        fresh_answers,
        reused_plan,
    )
}


def _verify_all(subject: Subject, problems: Iterable[tuple[str, Problem]]) -> None:
    for label, problem in problems:
        try:
            found = verify_problem(subject.kernel, subject.offer, problem)
        except Exception as error:
            raise VerificationError(f"{subject.name}, {label}: {type(error).__name__}: {error}") from error
        if not found.passed:
            raise VerificationError(f"{subject.name}, {label}: {'; '.join(map(str, found.failures))}")


def _is_short(problem: Problem) -> bool:
    return max(problem.concrete_mask.seqlen_q, problem.concrete_mask.seqlen_k) <= _SHORT


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _same_bits(first: Tensor, second: Tensor) -> bool:
    return torch.equal(first.contiguous().view(torch.uint8), second.contiguous().view(torch.uint8))
