"""The checks of an offer, each with a name of its own.

A check gives the problems on which a variant of an offer is verified, each with its label and the way to verify it. It
raises `NotApplicableError` if there is nothing to check. `hold` is the loop of the pytest tests over one check, and
`longca_bench.conformance.offers` that of `longca verify` over some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from longca.errors import VerificationError
from longca.kernels.base import Kernel
from longca.manifests import Direction, Offer, Problem
from longca.manifests.pairs import halves, join, split
from longca.manifests.verdict import paragraph
from longca_bench.conformance.failure_summary import Case, failure_summary
from longca_bench.conformance.masks import has_empty_rows, sparse_rows, uneven
from longca_bench.conformance.offer_variant import PARTNER, NotApplicableError, OfferVariant
from longca_bench.conformance.oracle import (
    REPEATS,
    verify_calls,
    verify_outliers,
    verify_problem,
    verify_repeats,
    verify_results,
    verify_reused,
)
from longca_bench.conformance.problems import OUTLIERS_EACH, Labelled, few, smallest_first
from longca_bench.measuring.remote_kernel import RemoteKernel
from longca_bench.measuring.status import CaseEndError
from longca_bench.verification.findings import Verification
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.sinks import WithSinks

__all__ = ["CHECKS", "Asked", "deterministic", "each", "hold", "outliers", "sinks"]

_SHORT = 2048  # tokens of all masks that are not long on purpose

#: The label of a problem, the problem, and how a kernel is verified on it.
Asked = tuple[str, Problem, Callable[[Kernel, Problem, Offer | None], Verification]]


def each(problems: Iterable[Labelled]) -> list[Asked]:
    """Problems that are verified as they are, the smallest first."""
    return [(label, problem, verify_problem) for label, problem in smallest_first(problems)]


def right(variant: OfferVariant) -> list[Asked]:
    """The results are right on the problems of `longca verify`: 8:1, 3:3 and 4:2 heads, counts, composition."""
    return each((label, problem) for label, problem in variant.problems() if not has_empty_rows(problem.concrete_mask))


def outliers(variant: OfferVariant) -> list[Asked]:
    """The results are right if scores are beyond the range of exp, and a few keys are outliers."""
    some = smallest_first(variant.problems()[::OUTLIERS_EACH])
    return [(f"{label}, outliers", problem, verify_outliers) for label, problem in some]


def sinks(variant: OfferVariant) -> list[Asked]:
    """The results and the gradient of sinks are right, if the offer composes."""
    asked = [(f"{label}, sinks", replace(problem, sinks=True)) for label, problem in few(variant.problems())]
    found, refusal = variant.covered(asked)
    if not found:
        raise NotApplicableError(refusal)
    return [(label, problem, _verify_sinks) for label, problem in found[:1]]


def uneven_lengths(variant: OfferVariant) -> list[Asked]:
    """The results are right if the last tile has a single token, 7 or 63."""
    return each(variant.problems(uneven()))


def empty_rows(variant: OfferVariant) -> list[Asked]:
    """The results are right if queries see no key: out is 0 and lse is −∞."""
    return each(variant.problems(sparse_rows()))


def strided_inputs(variant: OfferVariant) -> list[Asked]:
    """The results are right if q, k and v are slices of larger tensors, as after a fused projection."""
    problems = variant.problems()
    short = [(label, p) for label, p in problems if max(p.concrete_mask.seqlen_q, p.concrete_mask.seqlen_k) <= _SHORT]
    # of several documents, if there is one
    label, problem = max(short or problems[:1], key=lambda labelled: len(labelled[1].concrete_mask.head(0).array))
    return [(f"{label}, of slices of larger tensors", problem, _verify_strided)]


def repeated(variant: OfferVariant) -> list[Asked]:
    """The results are right in each of many calls with one plan, on inputs that change in the same memory.

    Every second call gets the same buffers, and the others get none. A race shows in some calls, and a cache in most.
    """
    label, problem = variant.problems()[0]
    return [(label, problem, verify_calls)]


def deterministic(variant: OfferVariant) -> list[Asked]:
    """Equal inputs give equal bits wherever they lie in memory, if the offer promises it and the problem asks it.

    Both halves of a pair must promise it. An offer that promises it and refuses such a problem is wrong.
    """
    if not variant.offer.deterministic:
        raise NotApplicableError("the offer does not say that it is deterministic")
    asked = [(label, replace(problem, deterministic=True)) for label, problem in variant.problems()]
    resolve = variant.registry.resolve
    if split(variant.name):
        asked = [(label, problem) for label, problem in asked if resolve(variant.name, problem).valid]
    if not asked:
        raise NotApplicableError("a half of the pair does not say that it is deterministic")
    label, largest = max(asked, key=lambda labelled: labelled[1].area)
    if reasons := resolve(variant.name, largest).reasons:
        raise VerificationError(f"{label}: the offer promises equal bits, but: {paragraph(reasons)}")
    return [(f"{label}, {REPEATS} runs", largest, verify_repeats)]


def reused_plan(variant: OfferVariant) -> list[Asked]:
    """A plan has its offer's form. It serves many calls, even if other plans are made and run between them."""
    problems = variant.problems()
    (label, problem), (_, last) = problems[0], problems[-1]
    return [(label, problem, lambda kernel, first, offer: verify_reused(kernel, first, last, offer))]


def paired(variant: OfferVariant) -> list[Asked]:
    """The kernel is right as a half of a pair with `naive`: its forward, or its backward with external out and lse."""
    pair, problems = _partnered(variant)

    def verify(_: Kernel, problem: Problem, offer: Offer | None) -> Verification:
        return verify_problem(pair.kernel, problem, offer if variant.direction == "backward" else None)

    return [(f"{pair.name}, {label}", problem, verify) for label, problem in smallest_first(few(problems))]


#: Every check by its name in test ids.
CHECKS: dict[str, Callable[[OfferVariant], list[Asked]]] = {
    check.__name__: check
    for check in (
        right,
        outliers,
        sinks,
        uneven_lengths,
        empty_rows,
        strided_inputs,
        repeated,
        deterministic,
        reused_plan,
        paired,
    )
}


def hold(check: Callable[[OfferVariant], Sequence[Asked]], variant: OfferVariant) -> None:
    """Makes one check of an offer. The error has the smallest wrong problem, and what all wrong ones have in common.

    Raises:
        VerificationError: The kernel is wrong, or raises in this process.
        CaseEndError: The kernel raises, crashes, hangs or runs out of memory in its worker.
        NotApplicableError: There is nothing to check.
    """
    cases: list[Case] = []
    wrong: Case | None = None
    for label, problem, verify in check(variant):
        try:
            cases.append(Case(label, problem, verify(variant.kernel, problem, variant.offer)))
        except Exception as error:
            if wrong is not None:  # it is told, with what was found until now
                break
            if isinstance(error, CaseEndError):
                raise CaseEndError(error.status, f"{variant.name}, {label}: {error}") from None
            raise VerificationError(f"{variant.name}, {label}: {type(error).__name__}: {error}") from error
        if wrong is None and not cases[-1].found.passed:
            wrong = cases[-1]
            if any(finding.tensor == "state" for finding in wrong.found.failures):
                break  # each further call would need a fresh worker
    if wrong is not None:
        failures = "; ".join(map(str, wrong.found.failures))
        more = f". It is {failure_summary(cases)}" if len(cases) > 1 else ""
        raise VerificationError(f"{variant.name}, {wrong.label}: {failures}{more}")


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
    found = [one for one in asked if resolve(variant.name, halves(one[1])[0]).is_by(variant.offer)]
    if not found:
        raise NotApplicableError("the offer's forward has no log-sum-exp for other kernels")
    return replace(variant, name=join(variant.name, PARTNER)), found


def _verify_sinks(kernel: Kernel, problem: Problem, offer: Offer | None) -> Verification:
    # A worker adds sinks itself.
    return verify_problem(kernel if isinstance(kernel, RemoteKernel) else WithSinks(kernel), problem, offer)


def _verify_strided(kernel: Kernel, problem: Problem, offer: Offer | None) -> Verification:
    def sliced(x: Inputs) -> Inputs:
        wider = x.q.new_full((x.q.shape[0], problem.heads_q + 1, problem.head_dim), torch.nan)
        dim, parts = (1, problem.num_heads_kv) if problem.head_dim_v is None else (2, list(problem.dims))
        k, v = torch.cat([x.k, x.v], dim).split(parts, dim)
        return replace(x, q=wider[:, :-1].copy_(x.q), k=k, v=v)

    return verify_results(kernel, kernel.plan(problem), 0, offer, sliced)
