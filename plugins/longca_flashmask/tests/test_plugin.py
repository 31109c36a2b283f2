"""The plugin as LongCA sees it: which problems it takes, and why not others."""

from __future__ import annotations

import longca
import longca_flashmask
from longca.masks import Slice, SliceMask

HOPPER = longca.Device("cuda", (9, 0))


def reasons(mask, **other):
    """Why not, packages apart: Triton need not be installed."""
    problem = longca.Problem(**{"mask": mask, "heads_q": 4, "device": HOPPER, **other})
    return [reason for reason in longca.resolve("flashmask", problem).reasons if reason.code != "package"]


def comb(teeth):
    """One query sees every other key."""
    return SliceMask([Slice(0, 1, 2 * k, 2 * k + 1) for k in range(teeth)], 20, 20)


def test_it_refuses_a_ninth_interval_of_a_key():
    mask = SliceMask([Slice(2 * q, 2 * q + 1, 0, 1) for q in range(9)], 20, 20)
    (found,) = reasons(mask)
    assert found.code == "form"
    assert "at most 8" in str(found)


def test_it_refuses_a_ninth_interval_of_a_query():
    few, many = (longca.Problem(mask=comb(n), heads_q=4, device=HOPPER) for n in (8, 9))
    assert longca_flashmask.supports_mask("flashmask", few) is None
    verdict = longca_flashmask.supports_mask("flashmask", many)
    assert not verdict.valid
    assert "at most 8 row_intervals" in str(verdict.reasons[0])
