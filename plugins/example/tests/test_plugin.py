"""The plugin as LongCA sees it: the problems that it takes, and the reasons against others."""

from __future__ import annotations

import longca


def test_a_third_interval_is_refused_with_a_reason():
    mask = longca.masks.SliceMask([longca.masks.Slice(0, 8, k, k + 1) for k in (0, 2, 4)], 8, 8)
    verdict = longca.resolve("online", longca.Problem(mask=mask, heads_q=1, device=longca.Device("cpu")))
    assert [reason.code for reason in verdict.reasons] == ["form"]
    assert "at most 2" in str(verdict.reasons[0])
