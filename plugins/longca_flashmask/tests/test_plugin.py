"""The plugin as LongCA sees it: which problems it takes, and why not others."""

from __future__ import annotations

import longca
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
    assert not reasons(comb(8))
    (found,) = reasons(comb(9))
    assert found.code == "form"
