"""Noting checks on this machine: unverified offers count as verified there, and wrong kernels are not recommended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby

from longca.errors import RecordError
from longca.manifests import Device
from longca.manifests.pairs import split
from longca.manifests.verified import Check, note_check, verified_path, versions_of
from longca.plain_text import plain_text
from longca.plugins import Registry
from longca_advice.history import Doubt, append
from longca_bench.conformance.offers import OfferCheck
from longca_bench.conformance.subject import OVERTAKEN
from longca_bench.measuring.environment import this_machine
from longca_bench.measuring.status import Status

__all__ = ["doubt", "note"]

_GRADIENTS = ("dq", "dk", "dv")
_MOST_OF_CASE = 200


def doubt(registry: Registry, device: Device, checks: Sequence[OfferCheck]) -> list[str]:
    """Adds each kernel that is wrong to this machine's history, which then leaves out what was measured of it.

    Args:
        registry: The registry of the kernels.
        device: The device.
        checks: Checks of offers.

    Returns:
        The kernels.
    """
    wrong: dict[str, OfferCheck] = {}
    for check in checks:
        if check.status is Status.WRONG and (kernel := _blamed(check)):
            wrong.setdefault(kernel, check)
    for kernel, check in wrong.items():
        provider = registry.provider(kernel)
        append(
            Doubt(
                status="wrong",
                case=f"`longca verify`: {_failure(check)}"[:_MOST_OF_CASE],
                kernel=kernel,
                version=f"{provider.distribution} {provider.version}",
                finished=datetime.now(UTC).isoformat(timespec="seconds"),
                run=this_machine(registry, device),
            )
        )
    return list(wrong)


def _blamed(check: OfferCheck) -> str:
    """The kernel that is wrong, or an empty text if it may be either one of a pair."""
    halves = split(check.kernel)
    if halves is None:
        return check.kernel
    of_gradients = {finding.tensor.startswith(_GRADIENTS) for _, finding in check.failures}
    return halves[of_gradients.pop()] if len(of_gradients) == 1 else ""


def note(registry: Registry, kernel: str, device: Device, checks: Sequence[OfferCheck]) -> list[Check]:
    """Stores the result of each offer that was verified in all its dtypes and directions, or that failed in one.

    Args:
        registry: The kernel's registry.
        kernel: The kernel.
        device: The device.
        checks: The checks of its offers, those of an offer in a row.

    Returns:
        The stored results.

    Raises:
        RecordError: The file cannot be written.
    """
    noted = list(_results(registry, kernel, device, checks))
    for result in noted:
        try:
            note_check(result)
        except OSError as error:
            raise RecordError(
                f"{kernel} was verified, and the result cannot be stored in {verified_path()}: {error.strerror}. Set "
                "LONGCA_VERIFIED to a path that can be written"
            ) from None
    return noted


def _results(registry: Registry, kernel: str, device: Device, checks: Sequence[OfferCheck]) -> Iterator[Check]:
    manifest, distributions = registry.manifest(kernel), [registry.provider(kernel).distribution]
    for offer, some in groupby(checks, key=lambda check: check.offer):
        ways = list(some)
        failed = next((check for check in ways if check.status.is_failure and not check.skipped), None)
        complete = any(check.passed for check in ways) and all(
            check.passed or check.skipped == OVERTAKEN for check in ways
        )
        if failed is None and not complete:
            continue
        assert device.capability is not None, "only CUDA devices have unverified offers"
        yield Check(
            kernel=kernel,
            offer=Check.digest(offer),
            device=device.name,
            capability=device.capability,
            versions=versions_of(manifest, offer, distributions),
            passed=failed is None,
            message="" if failed is None else _failure(failed),
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def _failure(check: OfferCheck) -> str:
    what = check.error or "; ".join(f"{label}: {finding}" for label, finding in check.failures[:1])
    return plain_text(f"{check.offer.form} {check.dtype} {check.direction}: {check.status} on {what}", 500)
