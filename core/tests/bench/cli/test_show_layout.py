"""`longca show-layout`: meshes, and the command on a strategy of a plugin."""

from __future__ import annotations

import json

import pytest

from ...fake_plugins import STRATEGY, FakePlugins

#: A problem for the strategy of `fake_plugins`: 64 tokens and 4 heads on 2 ranks.
ROUND = ["show-layout", "round", "--gpus", "2", "--seqlen", "64", "--heads", "4"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The command line with a third-party strategy that states no schedule."""
    plugins = FakePlugins(tmp_path_factory.mktemp("layout"))
    plugins.add("rounds", STRATEGY)
    return plugins


@pytest.mark.parametrize(
    ("mesh", "said"),
    [
        ("ring=4", "has 4 ranks, and --gpus is 2"),
        ("ring=0", "'ring=0' is no mesh"),
        ("x=2", "each of ring"),
    ],
)
def test_other_meshes_are_refused(made, mesh, said):
    assert said in made.refuses(*ROUND, "--mesh", mesh)


def test_both_directions_of_training(made):
    one, both = (json.loads(made.says(*ROUND, "--direction", each, "--json")) for each in ("backward", "training"))
    assert list(both) == ["forward", "backward"]
    assert both["backward"] == one


def test_numbers_of_a_third_partys_strategy(made):
    said = made.says(*ROUND, without=("torch", "matplotlib"))
    assert said.startswith(
        "causal of 64 tokens\n4:4 heads of 128, bfloat16, forward, on 2 ranks\n\nRound, ring 2, halves placement\n"
    )
    assert "busiest rank has 1.49 times the pairs" in said
    assert "states no schedule" in said


def test_placements_side_by_side_with_reasons(made):
    found = json.loads(made.says(*ROUND, "--placement", "all", "--json"))
    assert list(found) == ["halves", "stripes", "again", "nowhere"]
    assert found["halves"]["ranks"][0] == {"tokens": 32, "steps": 1, "pairs": 4 * 528, "shard": [[0, 32]]}
    assert found["nowhere"] == "too many"
    table = made.longca(*ROUND, "--placement", "all").stdout
    assert "too many" in table
    assert [line.split()[:3] for line in table.splitlines()[5:8]] == [
        ["halves", "1.49", "1"],
        ["stripes", "1.25*", "1"],
        ["again", "1.25*", "1"],
    ]


def test_pictures(made):
    for placement, suffix in (("stripes", "svg"), ("all", "png")):
        file = made.root / f"{placement}.{suffix}"
        assert made.says(*ROUND, "--placement", placement, "--out", str(file)).strip() == f"wrote {file}"
        assert file.stat().st_size > 5000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show-layout", "rounds"], "unknown strategy 'rounds'"),
        ([*ROUND, "--placement", "nowhere"], "too many"),
        ([*ROUND, "--placement", "diagonal"], "unknown placement of round 'diagonal'"),
        ([*ROUND, "--out", "x.bmp"], "pictures are drawn as .png, .svg, .pdf"),
        ([*ROUND, "--mask", "casual"], "unknown mask pattern 'casual'"),
    ],
)
def test_a_wrong_request_is_one_sentence(made, arguments, message):
    assert made.refuses(*arguments).startswith(f"error: {message}")
