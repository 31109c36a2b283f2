"""A finding of a verification as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

__all__ = ["finding_as_json"]


def finding_as_json(label: str, finding: Any) -> dict[str, Any]:
    """A finding as plain data. JSON has no NaN and no infinity, so null stands for both."""
    values = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(finding).items()}
    return {"mask": label, **values}
