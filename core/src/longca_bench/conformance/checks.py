"""The checks of an offer, each with a name of its own.

A check takes an `OfferVariant`. It returns if the kernel is right, and raises `VerificationError` or `ContractError` if
the kernel is wrong. `NotApplicableError` means that there is nothing to check. A kernel that raises, crashes, hangs or
runs out of memory in its worker is a `CaseEndError`. In this process its own exceptions pass through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from longca.errors import VerificationError
from longca.kernels.base import Kernel
from longca.manifests import Direction, Offer, Problem
from longca.manifests.pairs import halves, join, split
from longca_bench.conformance.masks import has_empty_rows, sparse_rows, uneven
from longca_bench.conformance.offer_variant import PARTNER, NotApplicableError, OfferVariant
from longca_bench.conformance.oracle import oracle, run, verify_changed, verify_outliers, verify_problem, verify_repeats
from longca_bench.conformance.problems import OUTLIERS_EACH, Labelled, few, smallest_first
from longca_bench.measuring.status import CaseEndError
from longca_bench.verification.findings import Verification

__all__ = ["CHECKS", "RUNS"]

RUNS = 24  # finds a kernel that is wrong in one run of ten with a probability above 90 %
_SHORT = 2048  # tokens of all masks that are not long on purpose


def right(variant: OfferVariant) -> None:
    """The results are right on the problems of `longca verify`: 8:1, 3:3 and 4:2 heads, counts, composition."""
    _verify_all(variant, [(label, p) for label, p in variant.problems() if not has_empty_rows(p.concrete_mask)])


def outliers(variant: OfferVariant) -> None:
    """The results are right if scores are beyond the range of exp, and a few keys are outliers."""
    _verify_all(variant, variant.problems()[::OUTLIERS_EACH], verify_outliers)


def uneven_lengths(variant: OfferVariant) -> None:
    """The results are right if the last tile has a single token, or 37."""
    _verify_all(variant, variant.problems(uneven()))


def empty_rows(variant: OfferVariant) -> None:
    """The results are right if queries see no key: out is 0 and lse is −∞."""
    _verify_all(variant, variant.problems(sparse_rows()))


def strided_inputs(variant: OfferVariant) -> None:
    """The results are right if q, k and v are slices of larger tensors, as after a fused projection."""
    problems = [problem for _, problem in variant.problems()]
    short = [problem for problem in problems if _is_short(problem)] or problems[:1]
    problem = max(short, key=lambda p: len(p.concrete_mask.head(0).array))  # of several documents, if there is one
    original, expected = oracle(problem, 0)
    wider = original.q.new_full((original.q.shape[0], problem.heads_q + 1, problem.head_dim), torch.nan)
    q = wider[:, :-1].copy_(original.q)
    k, v = torch.cat([original.k, original.v], 1).split(problem.num_heads_kv, 1)
    inputs = replace(original.clone(), q=q, k=k, v=v)
    results = run(variant.kernel, variant.kernel.plan(problem), inputs)
    variant.hold(results, expected, f"{problem.concrete_mask.label}, of slices of larger tensors")


def repeated(variant: OfferVariant) -> None:
    """The results are right in each of many calls with one plan, on inputs that change in the same memory.

    Every second call gets the same buffers, and the others get none. A race shows in some calls, and a cache in most.
    """
    calls = verify_changed(variant.kernel, variant.problem, variant.offer, RUNS)
    for number, found in enumerate(calls, start=1):
        if not found.passed:
            failures = "; ".join(map(str, found.failures))
            raise VerificationError(f"{variant.name}, call {number} of {RUNS}: {failures}")


def deterministic(variant: OfferVariant) -> None:
    """Equal inputs give equal bits wherever they lie in memory, if the offer promises it and the problem asks it."""
    if not variant.offer.deterministic:
        raise NotApplicableError("the offer does not say that it is deterministic")
    found = verify_repeats(variant.kernel, replace(variant.problem, deterministic=True), variant.offer)
    if differing := [finding.tensor.partition(" ")[0] for finding in found.failures]:
        raise VerificationError(
            f"{variant.name} says it is deterministic, but equal inputs gave other bits of {', '.join(differing)}"
        )


def reused_plan(variant: OfferVariant) -> None:
    """A plan has its offer's form. It serves many calls, even if other plans are made and run between them."""
    kernel, problems = variant.kernel, [problem for _, problem in variant.problems()]
    plan = kernel.plan(problems[0])
    if plan.form is not variant.offer.form:
        raise VerificationError(f"{variant.name}: the plan's form is {plan.form}, the offer's {variant.offer.form}")
    if plan.problem != problems[0]:
        raise VerificationError(f"{variant.name}: the plan's problem is not the one that was planned for")
    for seed, between in enumerate((problems[0], problems[-1], problems[0])):
        run(kernel, plan if between is problems[0] else kernel.plan(between), oracle(between, seed)[0].clone())
        inputs, expected = oracle(problems[0], seed)
        variant.hold(run(kernel, plan, inputs.clone()), expected, f"call {2 * seed + 2} with one plan")


def paired(variant: OfferVariant) -> None:
    """The kernel is right as a half of a pair with `naive`: its forward, or its backward with external out and lse."""
    pair, problems = _partnered(variant)
    _verify_all(pair, few(problems), has_offer=variant.direction == "backward")


#: Every check by its name in test ids.
CHECKS: dict[str, Callable[[OfferVariant], None]] = {
    check.__name__: check
    for check in (
        right,
        outliers,
        uneven_lengths,
        empty_rows,
        strided_inputs,
        repeated,
        deterministic,
        reused_plan,
        paired,
    )
}


def _partnered(variant: OfferVariant) -> tuple[OfferVariant, list[Labelled]]:
    """The pair of a kernel and its partner, and the problems in which the variant's offer is that of the kernel."""
    if split(variant.name):
        return variant, variant.problems()
    if variant.name == PARTNER:
        raise NotApplicableError(f"{PARTNER} is the partner of other kernels")
    if variant.direction == "backward":
        if not variant.offer.backward.composes:
            raise NotApplicableError("the offer's backward takes out and lse of its own forward alone")
        pair = replace(variant, name=join(PARTNER, variant.name))
        return pair, pair.problems()
    asked = [(label, problem.in_direction(Direction.BACKWARD)) for label, problem in variant.problems()]
    resolve = variant.registry.resolve
    found = [each for each in asked if resolve(variant.name, halves(each[1])[0]).is_by(variant.offer)]
    if not found:
        raise NotApplicableError("the offer's forward has no log-sum-exp for other kernels")
    return replace(variant, name=join(variant.name, PARTNER)), found


def _verify_all(
    variant: OfferVariant,
    problems: Iterable[tuple[str, Problem]],
    verify: Callable[[Kernel, Problem, Offer | None], Verification] = verify_problem,
    *,
    has_offer: bool = True,
) -> None:
    """Verifies problems, the smallest first, and the promises of the variant's offer if it covers the whole problem."""
    for label, problem in smallest_first(problems):
        try:
            found = verify(variant.kernel, problem, variant.offer if has_offer else None)
        except CaseEndError as end:
            raise CaseEndError(end.status, f"{variant.name}, {label}: {end}") from None
        except Exception as error:
            raise VerificationError(f"{variant.name}, {label}: {type(error).__name__}: {error}") from error
        if not found.passed:
            raise VerificationError(f"{variant.name}, {label}: {'; '.join(map(str, found.failures))}")


def _is_short(problem: Problem) -> bool:
    return max(problem.concrete_mask.seqlen_q, problem.concrete_mask.seqlen_k) <= _SHORT
