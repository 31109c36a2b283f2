"""`longca verify`: every offer of a kernel, verified on its problems, one after the other or side by side."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from longca.kernels.base import Kernel
from longca.manifests import Device, Offer, Problem
from longca.manifests.offers import DType
from longca.manifests.problem import Direction
from longca.plugins import Registry, registry
from longca_bench.conformance.oracle import REPEATS, verify_problem, verify_repeats
from longca_bench.conformance.subject import NotApplicableError, Subject, subjects
from longca_bench.verification.verify import Finding, Verification

__all__ = ["OfferCheck", "verify_kernels", "verify_subject"]

_Verify = Callable[[Kernel, Problem, Offer], Verification]


@dataclass
class OfferCheck:
    """The findings of one offer in one direction and dtype.

    Attributes:
        kernel: The name of the kernel that ran. An offer without a forward runs as a pair with `naive`.
        offer: The offer.
        direction: `forward` or `backward`.
        dtype: Data type.
        masks: The labels of its problems.
        worst: The finding that is nearest to its limit, or furthest beyond it, with the label of its problem.
        failures: Every finding beyond its limit, with the label of its problem.
        skipped: The reason why the offer was not verified, or an empty text.
        error: The kernel's exception, or an empty text.
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
        """Whether the offer was verified and is right."""
        return bool(self.masks) and not self.failures and not self.error

    def take(self, label: str, verification: Verification) -> None:
        """Adds the findings of one problem."""
        self.masks.append(label)
        for finding in verification.findings:
            if self.worst is None or finding.closeness > self.worst[1].closeness:
                self.worst = label, finding
            if not finding.passed:
                self.failures.append((label, finding))


def verify_subject(subject: Subject) -> OfferCheck:
    """Verifies one offer in one direction and dtype. Whatever the kernel raises is a finding about the kernel."""
    check = OfferCheck(subject.name, subject.offer, subject.direction, subject.dtype)
    try:
        problems = subject.problems()
    except NotApplicableError as reason:
        check.skipped = str(reason)
        return check
    asked: list[tuple[str, Problem, _Verify]] = [(label, problem, verify_problem) for label, problem in problems]
    if subject.offer.deterministic:
        label, largest = max(problems, key=lambda labelled: labelled[1].area)
        strict = replace(largest, deterministic=True)
        asked.append((f"{label}, {REPEATS} runs", strict, verify_repeats))
        if reasons := subject.registry.resolve(subject.name, strict).reasons:
            check.error = f"{label}: the offer promises equal bits, but: {' '.join(map(str, reasons))}"
    for label, problem, verify in asked:
        try:
            check.take(label, verify(subject.kernel, problem, subject.offer))
        except Exception as error:
            check.error = f"{label}: {type(error).__name__}: {error}"
            break
    return check


def verify_kernels(
    source: Registry, kernels: Sequence[str], device: Device, jobs: int = 1
) -> Iterator[tuple[str, list[OfferCheck]]]:
    """Verifies every offer of some kernels.

    Several jobs save time because kernels are compiled, and one process compiles on one core.

    Args:
        source: The registry of the kernels.
        kernels: Names of kernels and pairs.
        device: The device. Several jobs take every GPU in turn.
        jobs: Processes.

    Yields:
        Each kernel with its checks, as soon as it and all kernels before it are done.
    """
    asked = {kernel: list(subjects(source, kernel, device)) for kernel in kernels}
    if jobs == 1:
        for kernel, found in asked.items():
            yield kernel, [verify_subject(subject) for subject in found]
        return
    context = multiprocessing.get_context("spawn")
    started = context.Value("i", 0)
    with ProcessPoolExecutor(jobs, context, _start, (source.disabled, started)) as pool:
        running = {
            name: [pool.submit(_verify, name, number, device) for number, _ in enumerate(each)]
            for name, each in asked.items()
        }
        for kernel, checks in running.items():
            yield kernel, [check.result() for check in checks]


_registry: Registry


def _start(disabled: frozenset[str], started: Any) -> None:
    """Opens the process's own registry, and takes the next GPU."""
    global _registry
    _registry = registry(disabled)
    with started.get_lock():
        turn, started.value = started.value, started.value + 1
    if torch.cuda.is_available():
        torch.cuda.set_device(turn % torch.cuda.device_count())


def _verify(kernel: str, number: int, device: Device) -> OfferCheck:
    return verify_subject(list(subjects(_registry, kernel, device))[number])
