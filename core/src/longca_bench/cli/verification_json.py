"""The verification of a kernel as JSON: its offers, and when, where and with which code they were verified."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longca_bench.conformance.offers import OfferCheck
    from longca_bench.conformance.provenance import Provenance

__all__ = ["finding_as_json", "verification_as_json"]


def finding_as_json(label: str, finding: Any) -> dict[str, Any]:
    """A finding as plain data. JSON has no NaN and no infinity, so null stands for both."""
    values = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(finding).items()}
    return {"mask": label, **values}


def verification_as_json(checks: Sequence[OfferCheck], finished: datetime, provenance: Provenance) -> dict[str, Any]:
    """The verification of one kernel as plain data.

    Args:
        checks: The checks of its offers.
        finished: The time of the last check, in UTC.
        provenance: The provenance.
    """
    return {
        "finished": finished.isoformat(timespec="seconds"),
        **provenance.device,
        "versions": provenance.versions,
        "sources": provenance.sources,
        "offers": [_check_as_json(check) for check in checks],
    }


def _check_as_json(check: OfferCheck) -> dict[str, Any]:
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
        "failures": [finding_as_json(*failure) for failure in check.failures],
    }
