"""The checks of an offer, each with a name of its own.

A check takes a `Subject`. It returns if the kernel is right, and raises `VerificationError` or `ContractError` if the
kernel is wrong. `NotApplicableError` means that there is nothing to check. A kernel that raises, crashes, hangs or runs
out of memory in its worker is a `CaseEndError`. In this process its own exceptions pass through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace

import torch

from longca.errors import VerificationError
from longca.kernels.base import Kernel
from longca.manifests import Direction, Offer, Problem
from longca.manifests.pairs import halves, join, split
from longca_bench.conformance.masks import has_empty_rows, sparse_rows, uneven
from longca_bench.conformance.oracle import buffers_for, oracle, run, verify_outliers, verify_problem, verify_repeats
from longca_bench.conformance.problems import OUTLIERS_EACH, Labelled, few
from longca_bench.conformance.subject import PARTNER, NotApplicableError, Subject
from longca_bench.measuring.status import CaseEndError
from longca_bench.verification.findings import Verification, same_bits
from longca_bench.verification.reference import reference

__all__ = ["CHECKS", "RUNS"]

RUNS = 24  # finds a kernel that is wrong in one run of ten with a probability above 90 %
_SEEDS = 3
_SHORT = 2048  # tokens of all masks that are not long on purpose


def right(subject: Subject) -> None:
    """The results are right on the problems of `longca verify`: 8:1, 3:3 and 4:2 heads, counts, composition."""
    _verify_all(subject, [(label, p) for label, p in subject.problems() if not has_empty_rows(p.concrete_mask)])


def outliers(subject: Subject) -> None:
    """The results are right if scores are beyond the range of exp, and a few keys are outliers."""
    _verify_all(subject, subject.problems()[::OUTLIERS_EACH], verify_outliers)


def uneven_lengths(subject: Subject) -> None:
    """The results are right if the last tile has a single token."""
    _verify_all(subject, subject.problems(uneven()))


def empty_rows(subject: Subject) -> None:
    """The results are right if queries see no key: out is 0 and lse is −∞."""
    _verify_all(subject, subject.problems(sparse_rows()))


def poisoned_buffers(subject: Subject) -> None:
    """The kernel fills the given buffers to the last element, and returns them."""
    inputs, _ = oracle(subject.problem, 0)
    buffers = buffers_for(inputs, subject.direction)
    for name, result in run(subject.kernel, subject.kernel.plan(subject.problem), inputs.clone(), buffers).items():
        if missing := int(result.isnan().sum()):
            raise VerificationError(f"{subject.name}: {missing} elements of {name} were not written, or are NaN")


def contract(subject: Subject) -> None:
    """The results have the contract's shapes, dtypes and device, and share no memory with inputs or each other."""
    original, _ = oracle(subject.problem, 0)
    run(subject.kernel, subject.kernel.plan(subject.problem), original.clone())


def inputs_unchanged(subject: Subject) -> None:
    """The kernel changes none of its inputs: q, k, v and dout, and out and lse in the backward."""
    original, _ = oracle(subject.problem, 0)
    inputs, kernel = original.clone(), subject.kernel
    plan = kernel.plan(subject.problem)
    out, lse = kernel.forward(inputs.q, inputs.k, inputs.v, plan)
    before = {"out": out.clone(), "lse": lse.clone()}
    if subject.direction == "backward":
        kernel.backward(inputs.dout, inputs.q, inputs.k, inputs.v, out, lse, plan)
    before |= {field.name: getattr(original, field.name) for field in fields(original)}
    after = {"out": out, "lse": lse, **{field.name: getattr(inputs, field.name) for field in fields(inputs)}}
    if changed := [name for name, value in before.items() if not same_bits(value, after[name])]:
        raise VerificationError(f"{subject.name} changed its inputs: {', '.join(changed)}")


def strided_inputs(subject: Subject) -> None:
    """The results are right if q, k and v are slices of larger tensors, as after a fused projection."""
    problems = [problem for _, problem in subject.problems()]
    short = [problem for problem in problems if _is_short(problem)] or problems[:1]
    problem = max(short, key=lambda p: len(p.concrete_mask.head(0).array))  # of several documents, if there is one
    original, expected = oracle(problem, 0)
    wider = original.q.new_full((original.q.shape[0], problem.heads_q + 1, problem.head_dim), torch.nan)
    q = wider[:, :-1].copy_(original.q)
    k, v = torch.cat([original.k, original.v], 1).split(problem.num_heads_kv, 1)
    inputs = replace(original.clone(), q=q, k=k, v=v)
    results = run(subject.kernel, subject.kernel.plan(problem), inputs)
    subject.hold(results, expected, f"{problem.concrete_mask.label}, of slices of larger tensors")


def repeated(subject: Subject) -> None:
    """The results are right in each of many runs on several inputs. A race shows in some runs."""
    plan = subject.kernel.plan(subject.problem)
    for index in range(RUNS):
        inputs, expected = oracle(subject.problem, index % _SEEDS)
        subject.hold(run(subject.kernel, plan, inputs.clone()), expected, f"run {index + 1} of {RUNS}")


def deterministic(subject: Subject) -> None:
    """Equal inputs give equal bits wherever they lie in memory, if the offer promises it and the problem asks it."""
    if not subject.offer.deterministic:
        raise NotApplicableError("the offer does not say that it is deterministic")
    found = verify_repeats(subject.kernel, replace(subject.problem, deterministic=True), subject.offer)
    if differing := [finding.tensor.partition(" ")[0] for finding in found.failures]:
        raise VerificationError(
            f"{subject.name} says it is deterministic, but equal inputs gave other bits of {', '.join(differing)}"
        )


def fresh_answers(subject: Subject) -> None:
    """New values in the same memory give new results. Each input is refilled in turn, and the buffers stay."""
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
    """A plan has its offer's form. It serves many calls, even if other plans are made and run between them."""
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


def paired(subject: Subject) -> None:
    """The kernel is right as a half of a pair with `naive`: its forward, or its backward with external out and lse."""
    pair, problems = _partnered(subject)
    _verify_all(pair, few(problems), has_offer=subject.direction == "backward")


#: Every check by its name in test ids.
CHECKS: dict[str, Callable[[Subject], None]] = {
    check.__name__: check
    for check in (
        right,
        outliers,
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
        paired,
    )
}


def _partnered(subject: Subject) -> tuple[Subject, list[Labelled]]:
    """The pair of a kernel and its partner, and the problems in which the subject's offer is that of the kernel."""
    if split(subject.name):
        return subject, subject.problems()
    if subject.name == PARTNER:
        raise NotApplicableError(f"{PARTNER} is the partner of other kernels")
    if subject.direction == "backward":
        if not subject.offer.backward.composes:
            raise NotApplicableError("the offer's backward takes out and lse of its own forward alone")
        pair = replace(subject, name=join(PARTNER, subject.name))
        return pair, pair.problems()
    asked = [(label, problem.in_direction(Direction.BACKWARD)) for label, problem in subject.problems()]
    resolve = subject.registry.resolve
    found = [each for each in asked if resolve(subject.name, halves(each[1])[0]).is_by(subject.offer)]
    if not found:
        raise NotApplicableError("the offer's forward has no log-sum-exp for other kernels")
    return replace(subject, name=join(subject.name, PARTNER)), found


def _verify_all(
    subject: Subject,
    problems: Iterable[tuple[str, Problem]],
    verify: Callable[[Kernel, Problem, Offer | None], Verification] = verify_problem,
    *,
    has_offer: bool = True,
) -> None:
    """Verifies problems, and the promises of the subject's offer if the offer is that of the whole problem."""
    for label, problem in problems:
        try:
            found = verify(subject.kernel, problem, subject.offer if has_offer else None)
        except CaseEndError as end:
            raise CaseEndError(end.status, f"{subject.name}, {label}: {end}") from None
        except Exception as error:
            raise VerificationError(f"{subject.name}, {label}: {type(error).__name__}: {error}") from error
        if not found.passed:
            raise VerificationError(f"{subject.name}, {label}: {'; '.join(map(str, found.failures))}")


def _is_short(problem: Problem) -> bool:
    return max(problem.concrete_mask.seqlen_q, problem.concrete_mask.seqlen_k) <= _SHORT
