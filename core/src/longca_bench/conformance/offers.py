"""`longca verify`: every offer of a kernel, verified on its problems.

Kernels run in workers, so whatever a kernel does ends the check of its offer and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from longca.errors import VerificationError
from longca.manifests import Device, Offer, Problem
from longca.manifests.offers import DType
from longca.manifests.problem import Direction
from longca.manifests.verified import standing
from longca.plugins import Registry
from longca_bench.conformance.checks import deterministic, each, outliers, sinks
from longca_bench.conformance.failure_summary import Case
from longca_bench.conformance.isolation import Isolation
from longca_bench.conformance.offer_variant import NotApplicableError, OfferVariant, offer_variants
from longca_bench.conformance.oracle import verify_changed, verify_problem
from longca_bench.measuring.memory import is_exhausted
from longca_bench.measuring.remote_kernel import RemoteKernel
from longca_bench.measuring.results import ContractError
from longca_bench.measuring.status import CaseEndError, Status, failure
from longca_bench.verification.findings import Finding, Verification

__all__ = ["OfferCheck", "variants_to_verify", "verify_variant"]


@dataclass
class OfferCheck:
    """The findings of one offer in one direction and dtype, each with the label of its problem.

    The kernel is the one that ran: an offer without a forward runs as a pair with `naive`. The worst finding is nearest
    to its limit, or furthest beyond it. `skipped` has the reason why the offer was not verified, and `error` the event
    that ended the check, of the status `ended`. The seconds count compiling and references.
    """

    kernel: str
    offer: Offer
    direction: Direction
    dtype: DType
    masks: list[str] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list, repr=False)
    worst: tuple[str, Finding] | None = None
    failures: list[tuple[str, Finding]] = field(default_factory=list)
    limits: set[str] = field(default_factory=set)
    skipped: str = ""
    error: str = ""
    ended: Status = Status.OK
    calls: int = 0
    wrong_calls: int = 0
    seconds: float = field(default=0.0, compare=False)

    @property
    def status(self) -> Status:
        """The status of the offer."""
        if self.skipped:
            return Status.SKIPPED
        return Status.WRONG if self.failures and not self.error else self.ended

    @property
    def passed(self) -> bool:
        """Whether the offer was verified and is right."""
        return bool(self.masks) and self.status is Status.OK

    def take(self, label: str, problem: Problem, verification: Verification) -> None:
        """Adds the findings of one problem."""
        self.masks.append(label)
        self.cases.append(Case(label, problem, verification))
        self.limits.update(verification.limits)
        self._find(label, verification)

    def take_calls(self, label: str, verifications: Iterator[Verification]) -> None:
        """Counts the calls of one problem, and adds the findings of the first wrong one."""
        made = list(enumerate(verifications, start=1))
        wrong = [(number, verification) for number, verification in made if not verification.passed]
        self.calls, self.wrong_calls = self.calls + len(made), self.wrong_calls + len(wrong)
        for number, verification in wrong[:1]:
            self._find(f"{label}, call {number}", verification)

    def _find(self, label: str, verification: Verification) -> None:
        for finding in verification.findings:
            if self.worst is None or finding.closeness > self.worst[1].closeness:
                self.worst = label, finding
            if not finding.passed:
                self.failures.append((label, finding))


def verify_variant(variant: OfferVariant, repeat: int = 0) -> OfferCheck:
    """Verifies one offer in one direction and dtype. Each end of the kernel is a finding about the kernel.

    Each problem has `repeat` further calls, on changed inputs.
    """
    check, start = OfferCheck(variant.name, variant.offer, variant.direction, variant.dtype), time.monotonic()
    try:
        _verify_all(variant, check, repeat)
    except NotApplicableError as reason:
        check.skipped = str(reason)
    check.seconds = time.monotonic() - start
    return check


def _verify_all(variant: OfferVariant, check: OfferCheck, repeat: int) -> None:
    """Verifies the problems of an offer, until an event ends its check."""
    asked = [*each(variant.problems()), *outliers(variant)]
    for more in (sinks, deterministic):
        try:
            asked += more(variant)
        except NotApplicableError:
            pass
        except VerificationError as error:
            check.ended, check.error = Status.WRONG, str(error)
    kernel = None
    for label, problem, verify in asked:
        if problem.sinks and check.failures:
            continue  # sinks are added to results that are right
        try:
            kernel = variant.kernel
            found = verify(kernel, problem, variant.offer)
            check.take(label, problem, found)
            if any(finding.tensor == "state" for finding in found.failures):
                return  # each further call would need a fresh worker
            if repeat and verify is verify_problem:
                check.take_calls(label, verify_changed(variant.kernel, problem, variant.offer, repeat))
        except Exception as error:
            check.ended, message = _how(error, variant)
            check.error = f"{label}: {message}"
            if isinstance(kernel, RemoteKernel):
                kernel.end()  # the next offer gets a fresh worker
            return


def _how(error: Exception, variant: OfferVariant) -> tuple[Status, str]:
    """The status and the message of an event that ends a check."""
    if isinstance(error, CaseEndError):
        late = f"no answer within {variant.isolation.timeout:g} s; it was ended"
        return error.status, late if error.status is Status.TIMEOUT else str(error)
    if isinstance(error, ContractError | VerificationError):
        return Status.WRONG, str(error)
    text = f"{type(error).__name__}: {error}"
    return failure(exhausted=is_exhausted(error, text)), text


def variants_to_verify(
    source: Registry, kernel: str, device: Device, isolation: Isolation, unverified: bool = False
) -> list[OfferVariant]:
    """The offers of a kernel in each direction and dtype: all, or only those that nobody verified on the device."""
    variants = offer_variants(source, kernel, device, isolation, allow_unverified=unverified)
    return [each for each in variants if not unverified or standing(kernel, each.offer, device).is_open]
