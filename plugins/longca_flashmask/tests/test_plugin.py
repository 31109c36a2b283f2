"""The plugin as LongCA sees it: which problems it takes, and why not others."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import longca
import longca_flashmask
from longca.masks import Form, Slice, SliceMask

HOPPER = longca.Device("cuda", (9, 0))


def reasons(mask, **other):
    """Why not, packages apart: Triton need not be installed."""
    problem = longca.Problem(**{"mask": mask, "heads_q": 4, "device": HOPPER, **other})
    return [reason for reason in longca.resolve("flashmask", problem).reasons if reason.code != "package"]


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_it_takes_every_static_pattern_and_no_other(direction):
    for pattern in longca.masks.PATTERNS.values():
        found = reasons(pattern, direction=direction, deterministic=True)
        assert bool(found) == pattern.admits(Form.BLOCK_SPARSE), (pattern, found)


@pytest.mark.parametrize(
    ("other", "code"),
    [
        ({"dtype": "float32"}, "dtype"),
        ({"head_dim": 96}, "head_dim"),
        ({"device": longca.Device("cuda", (7, 5))}, "device"),
        ({"device": longca.Device("cpu")}, "device"),
    ],
)
def test_what_it_refuses(other, code):
    assert [reason.code for reason in reasons(longca.masks.build("causal", seqlen=8), **other)] == [code]


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


def test_the_entry_point_is_the_package():
    pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert pyproject["project"]["entry-points"]["longca"] == {"flashmask": longca_flashmask.__name__}
