"""Rows that ranks give and get when keys are gathered, compared with sets of tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca import Device, Problem, masks, registry
from longca_cp.schedules.gathered import MOST, Gathered, gathers_everything

PLACEMENTS = ["contiguous", "zigzag", "balanced"]


def tokens(ranges):
    return {token for pair in ranges for token in range(*pair)}


@given(
    pattern=st.sampled_from(["full", "causal", "causal_document", "full_document", "causal_sliding_window"]),
    ranks=st.integers(1, 5),
    placement=st.sampled_from(PLACEMENTS),
    seed=st.integers(0, 50),
)
def test_rows_are_those_that_steps_take_and_others_hold(pattern, ranks, placement, seed):
    mask = masks.sample(pattern, 360, seed=seed)
    problem = Problem(mask=mask, heads_q=2, head_dim=16, device=Device("cpu"))
    layout = registry().layout("ring_all_gather", problem, {"ring": ranks}, placement)
    gathered = Gathered(layout)
    held = [tokens(shard) for shard in layout.shards]
    needed = [tokens(steps[0].k_ranges) for steps in layout.steps]
    assert gathered.held.tolist() == [len(mine) for mine in held]
    assert gathered.needed.tolist() == [len(wanted) for wanted in needed]
    assert gathered.given.tolist() == [sum(len(mine & wanted) for wanted in needed) for mine in held]
    assert gathered.own.tolist() == [len(mine & wanted) for mine, wanted in zip(held, needed, strict=True)]
    assert gathered.everything == (sum(map(len, needed)) >= MOST * ranks * 360) == gathers_everything(layout)


@pytest.mark.parametrize(("placement", "reorders"), [("contiguous", False), ("zigzag", True)])
def test_rows_of_contiguous_shards_arrive_in_order(placement, reorders):
    problem = Problem(mask=masks.build("full", 384), heads_q=2, head_dim=16, device=Device("cpu"))
    layout = registry().layout("ring_all_gather", problem, {"ring": 4}, placement)
    assert Gathered(layout).reorders == reorders
