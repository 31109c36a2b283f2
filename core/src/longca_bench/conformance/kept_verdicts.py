"""Noting checks on this machine: unverified offers count as verified there, and wrong kernels are not recommended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Literal

from longca.errors import RecordError
from longca.manifests import Device
from longca.manifests.pairs import split
from longca.manifests.verified import Check, note_check, verified_path, versions_of
from longca.plain_text import plain_text
from longca.plugins import Registry
from longca_advice.from_records import half_at_fault
from longca_advice.history import CodeVerdict, append, code_version, history
from longca_bench.conformance.offer_variant import OVERTAKEN
from longca_bench.conformance.offers import OfferCheck
from longca_bench.measuring.environment import this_machine
from longca_bench.measuring.status import Status

__all__ = ["doubt", "note"]

#: Letters of a case in the history, and the beginning of those of `longca verify`.
_MOST_OF_CASE, _VERIFY = 200, "`longca verify`"


def doubt(
    registry: Registry, kernel: str, device: Device, checks: Sequence[OfferCheck], *, complete: bool
) -> dict[str, bool]:
    """Adds a kernel that is wrong to this machine's history, which then leaves out what was measured of it.

    A pair that is wrong says something about one of its kernels only if the results of its forward alone are wrong, or
    those of its backward alone. An offer without a forward is checked behind that of another kernel. A kernel that is
    right in all its offers, if they are `complete`, ends an earlier verdict of `longca verify` on this version.

    Returns:
        Each kernel that is wrong, and whether the history could be written to.
    """
    wrong: dict[str, OfferCheck] = {}
    for check in checks:
        if check.status is Status.WRONG and (blamed := _blamed(kernel, check)):
            wrong.setdefault(blamed, check)
    if complete and not wrong and split(kernel) is None and all(check.passed or check.skipped for check in checks):
        passed = _verdict(registry, kernel, device, "ok", _VERIFY)
        earlier = history().verdict_on(kernel, passed.run.device, passed.version)
        if earlier is not None and earlier.case.startswith(_VERIFY):
            append(passed)
    return {
        name: append(_verdict(registry, name, device, "wrong", f"{_VERIFY}: {_failure(check)}"))
        for name, check in wrong.items()
    }


def _verdict(registry: Registry, kernel: str, device: Device, status: Literal["wrong", "ok"], case: str) -> CodeVerdict:
    provider = registry.provider(kernel)
    return CodeVerdict(
        status=status,
        case=case[:_MOST_OF_CASE],
        kernel=kernel,
        version=code_version(provider.distribution, provider.version),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        run=this_machine(registry, device),
    )


def _blamed(kernel: str, check: OfferCheck) -> str:
    """The kernel that is wrong, or an empty text if another one may be."""
    halves = split(check.kernel)
    if halves is None:
        return kernel
    half = half_at_fault(finding.tensor for _, finding in check.failures)
    if split(kernel) is None:
        return "" if half == 0 else kernel
    return "" if half is None else halves[half]


def note(registry: Registry, kernel: str, device: Device, checks: Sequence[OfferCheck]) -> list[Check]:
    """Stores the result of each offer that was verified in all its dtypes and directions, or that failed in one.

    The checks of an offer stand in a row. A file that cannot be written is a `RecordError`.
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
