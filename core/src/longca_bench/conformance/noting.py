"""Noting the checks of unverified offers, so that the offers count as verified on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby

from longca.errors import RecordError
from longca.manifests import Device
from longca.manifests.verified import Check, note_check, verified_path, versions_of
from longca.plain_text import plain_text
from longca.plugins import Registry
from longca_bench.conformance.offers import OfferCheck
from longca_bench.conformance.subject import OVERTAKEN

__all__ = ["note"]


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
