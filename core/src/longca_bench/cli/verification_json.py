"""The verification of a kernel as JSON: its offers, and when, where and with which code they were verified."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from importlib_metadata import PackageNotFoundError, requires
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from longca.discovery import CORE
from longca.manifests.packages import alternatives, installed_version, sources_digest

if TYPE_CHECKING:
    from longca.manifests import Device
    from longca.plugins import Registry
    from longca_bench.conformance.offers import OfferCheck

__all__ = ["finding_as_json", "provenance", "verification_as_json"]


def finding_as_json(label: str, finding: Any) -> dict[str, Any]:
    """A finding as plain data. JSON has no NaN and no infinity, so null stands for both."""
    values = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(finding).items()}
    return {"mask": label, **values}


def provenance(registry: Registry, kernel: str, device: Device) -> dict[str, Any]:
    """Where and with which code a kernel is verified now."""
    from longca_bench.measuring.environment import device_facts

    manifests, plugins = registry.manifests(kernel), registry.providers(kernel)
    texts = {text for m in manifests for text in (*m.requires, *(t for offer in m.offers for t in offer.requires))}
    required = sorted({wanted.name for text in texts for wanted in alternatives(text)})
    kits = [kit for plugin in plugins for kit in _dependencies(plugin.distribution) if CORE in _dependencies(kit)]
    names = ("torch", "triton", CORE, *kits, *required)
    versions = {name: installed_version(name) for name in names} | {p.distribution: p.version for p in plugins}
    sources = {name: digest for name in versions if (digest := sources_digest(name))}
    return {
        **device_facts(device),
        "versions": {"python": platform.python_version(), **versions},
        "sources": sources,
    }


def _dependencies(distribution: str) -> list[str]:
    """The names of the distributions that an installed distribution depends on."""
    try:
        return [canonicalize_name(Requirement(text).name) for text in requires(distribution) or ()]
    except PackageNotFoundError:
        return []


def verification_as_json(
    checks: Sequence[OfferCheck], finished: datetime, provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """The verification of one kernel as plain data."""
    return {
        "finished": finished.isoformat(timespec="seconds"),
        **provenance,
        "offers": [_check_as_json(check) for check in checks],
    }


def _check_as_json(check: OfferCheck) -> dict[str, Any]:
    from longca_bench.conformance.failure_summary import failure_summary

    return {
        "offer": check.offer.model_dump(mode="json"),
        "form": str(check.offer.form),
        "dtype": check.dtype,
        "direction": check.direction,
        "status": str(check.status),
        "passed": check.passed,
        "skipped": check.skipped or None,
        "error": check.error or None,
        "masks": check.masks,
        "limits": sorted(check.limits),
        "worst": finding_as_json(*check.worst) if check.worst else None,
        "calls": check.calls,
        "wrong_calls": check.wrong_calls,
        "seconds": round(check.seconds, 3),
        "failure_summary": failure_summary(check.cases),
        "failures": [finding_as_json(*failure) for failure in check.failures],
    }
