"""The plugin as LongCA sees it: the problems that it takes, and the reasons against others."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import longca
import longca_example
from longca.masks import Form


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_it_takes_every_static_pattern_and_no_other(direction):
    for pattern in longca.masks.PATTERNS.values():
        problem = longca.Problem(mask=pattern, heads_q=4, device=longca.Device("cpu"), direction=direction)
        verdict = longca.resolve("online", problem)
        assert verdict.valid != pattern.admits(Form.BLOCK_SPARSE), (pattern, verdict)


def test_a_third_interval_is_refused_with_a_reason():
    mask = longca.masks.SliceMask([longca.masks.Slice(0, 8, k, k + 1) for k in (0, 2, 4)], 8, 8)
    verdict = longca.resolve("online", longca.Problem(mask=mask, heads_q=1, device=longca.Device("cpu")))
    assert [reason.code for reason in verdict.reasons] == ["form"]
    assert "at most 2" in str(verdict.reasons[0])


def test_the_entry_point_is_the_package():
    pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert pyproject["project"]["entry-points"]["longca"] == {"example": longca_example.__name__}
