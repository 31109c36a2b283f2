"""Verifying offers: for every row of a manifest, small problems that resolve to it, and what became of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from longca.kernels.base import Kernel, Plan, torch_device
from longca.manifests import Device, Offer, Problem
from longca.manifests.offers import DType
from longca.manifests.pairs import join, split
from longca.manifests.problem import Direction
from longca.plugins import Registry
from longca_bench.conformance.offer_problems import offer_problems
from longca_bench.verification.inputs import Inputs, draw_inputs
from longca_bench.verification.reference import part_reference, reference
from longca_bench.verification.verify import Finding, Verification, check_backward, check_counts, check_forward

__all__ = [
    "OfferCheck",
    "offered",
    "verified_as",
    "verify_kernel",
    "verify_offer",
    "verify_problem",
    "verify_repeats",
]

RUNS = 3  # of a kernel that says it is deterministic
_ORACLE = "naive"  # computes the forward for offers that have none


@dataclass
class OfferCheck:
    """One offer in one direction and dtype.

    Attributes:
        kernel: The kernel's name.
        offer: The offer.
        direction: `forward` or `backward`.
        dtype: Data type.
        masks: What it was verified on.
        worst: The finding nearest to its limit, or furthest beyond it, and the mask it was found on.
        failures: Every finding beyond its limit, with its mask.
        skipped: Why it was not verified here; empty where it was.
        error: What the kernel raised; empty where nothing.
    """

    kernel: str
    offer: Offer
    direction: Direction
    dtype: DType
    masks: list[str] = field(default_factory=list)
    worst: tuple[str, Finding] | None = None
    failures: list[tuple[str, Finding]] = field(default_factory=list)
    skipped: str = ""
    error: str = ""

    @property
    def passed(self) -> bool:
        """Whether it was verified, and right."""
        return bool(self.masks) and not self.failures and not self.error

    def take(self, label: str, verification: Verification) -> None:
        """Adds what was found on one mask."""
        self.masks.append(label)
        for finding in verification.findings:
            if self.worst is None or finding.closeness > self.worst[1].closeness:
                self.worst = label, finding
            if not finding.passed:
                self.failures.append((label, finding))


def offered(registry: Registry, kernel: str) -> list[tuple[Offer, DType, Direction]]:
    """What there is to verify of a kernel: every offer in every dtype and direction it has.

    Of a pair it is the offers of the backward kernel, whose backward is fed with the forward kernel's out and lse.

    Args:
        registry: Where the kernel comes from.
        kernel: Its name, or a pair's.
    """
    *paired, manifest = registry.manifests(kernel)
    return [
        (offer, dtype, direction)
        for offer in manifest.offers
        for dtype in offer.dtypes
        for direction in (("backward",) if paired else offer.directions)
    ]


def verified_as(kernel: str, offer: Offer) -> str:
    """The name of what runs to verify a kernel's offer: an offer without a forward is paired with the oracle's."""
    return kernel if offer.forward or split(kernel) else join(_ORACLE, kernel)


def verify_kernel(registry: Registry, kernel: str, device: Device) -> Iterator[OfferCheck]:
    """Verifies every offer of a kernel on a device, in every direction and dtype it has; see `offered`.

    Args:
        registry: Where the kernel comes from.
        kernel: Its name, or a pair's.
        device: Where to run it.
    """
    for row in offered(registry, kernel):
        yield verify_offer(registry, kernel, *row, device)


def verify_offer(
    registry: Registry, kernel: str, offer: Offer, dtype: DType, direction: Direction, device: Device
) -> OfferCheck:
    """Verifies one offer in one direction and dtype; what it takes is in `verify_kernel`."""
    check = OfferCheck(kernel, offer, direction, dtype)
    kernel = verified_as(kernel, offer)
    problems, check.skipped = offer_problems(registry, kernel, offer, dtype, direction, device)
    asked = [(label, problem, verify_problem) for label, problem in problems]
    if offer.deterministic and problems:
        label, largest = max(problems, key=lambda labelled: labelled[1].area)
        strict = replace(largest, deterministic=True)
        asked.append((f"{label}, {RUNS} runs", strict, verify_repeats))
        if reasons := registry.resolve(kernel, strict).reasons:
            check.error = f"{label}: equal bits were asked, as it offers: {' '.join(map(str, reasons))}"
    for label, problem, verify in asked:
        try:
            check.take(label, verify(registry.load(kernel), offer, problem))
        except Exception as error:  # whatever a kernel raises is a finding about that kernel
            check.error = f"{label}: {type(error).__name__}: {error}"
            break
    return check


def verify_problem(kernel: Kernel, offer: Offer, problem: Problem) -> Verification:
    """Verifies a kernel on one problem that an offer of its manifest covers.

    Raises:
        ValueError: The plan's form is not the offer's.
    """
    inputs = draw_inputs(problem, seed=0)
    expected = reference(problem, inputs)
    plan = _planned(kernel, offer, problem)
    found, out, lse = check_forward(kernel, plan, inputs, expected, rough_lse=offer.rough_lse)
    if problem.direction == "forward":
        return found + check_counts(kernel, plan, inputs)
    found += check_backward(kernel, plan, inputs, out, lse, expected)
    if offer.backward.composes:
        found += _run_as_part(kernel, problem, inputs)
    return found


def verify_repeats(kernel: Kernel, offer: Offer, problem: Problem) -> Verification:
    """Whether equal inputs give equal bits, as a deterministic offer says, in memory of their own each time.

    Raises:
        ValueError: The plan's form is not the offer's.
    """
    original = draw_inputs(problem, seed=0)
    copies = [original.clone() for _ in range(RUNS)]  # all alive at once, so that none lies where another did
    first, *others = ([*_results(kernel, _planned(kernel, offer, problem), inputs)] for inputs in copies)
    names = ("out", "lse", "dq", "dk", "dv")
    findings = []
    for name, value, again in zip(names, first, zip(*others, strict=True), strict=False):
        same = all(torch.equal(_bits(value), _bits(other)) for other in again)
        note = "" if same else "equal inputs gave other bits"
        findings.append(Finding(f"{name} repeated", same, 0.0, math.nan, 0.0, 0, 0, note))
    return Verification(tuple(findings))


def _results(kernel: Kernel, plan: Plan, inputs: Inputs) -> Iterator[Tensor]:
    """Out and lse, and after a backward dq, dk and dv."""
    out, lse = kernel.forward(inputs.q, inputs.k, inputs.v, plan)
    yield from (out, lse)
    if plan.problem.direction == "backward":
        yield from kernel.backward(inputs.dout, inputs.q, inputs.k, inputs.v, out, lse, plan)


def _bits(value: Tensor) -> Tensor:
    return value.contiguous().view(torch.uint8)


def _planned(kernel: Kernel, offer: Offer, problem: Problem) -> Plan:
    plan = kernel.plan(problem)
    if plan.form is not offer.form:
        raise ValueError(f"the plan's form is {plan.form}, but the offer that covers the problem is {offer.form}")
    return plan


def _run_as_part(kernel: Kernel, problem: Problem, inputs: Inputs) -> Verification:
    """The backward as one part of a softmax that runs over further keys, whose output and lse are made up."""
    q, device = inputs.q, torch_device(problem.device)
    generator = torch.Generator().manual_seed(1)
    other_out = torch.randn(q.shape, generator=generator, dtype=torch.float64).to(device)
    other_lse = torch.randn((q.shape[1], q.shape[0]), generator=generator, dtype=torch.float64).to(device) + 3.0
    expected = part_reference(problem, inputs, (other_out, other_lse))
    assert expected.merged is not None
    out, lse = expected.merged
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    plan = kernel.plan(replace(problem, composed=True))
    found = check_backward(kernel, plan, inputs, out.to(q.dtype), lse.to(wide), expected)
    return Verification(tuple(finding.named(f"{finding.tensor} as a part") for finding in found.findings))
