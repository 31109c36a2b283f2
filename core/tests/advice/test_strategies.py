"""Ranking strategies: what has a prediction, what has none and why, and what each choice says."""

import ast

import pytest

from longca import masks
from longca.masks import Form
from longca_advice.devices import Capacity
from longca_advice.evidence import SharedCall
from longca_advice.network import Link
from longca_advice.strategies import rank_strategies
from longca_advice.work import work_of

from .crossed import links
from .rows import TILE


def rank(question, ranks=4, **linked):
    return rank_strategies(question, ranks, links(**linked), ("crossed",))


def test_a_choice_says_the_strategy_its_mesh_and_its_placement(asked):
    found = rank(asked())
    assert not found.unmeasured
    assert found.notes == ()
    for choice in found.choices:
        assert (choice.kernel, choice.strategy, choice.mesh) == ("plain", "crossed", "outer=2,inner=2")
        assert choice.seconds.low < choice.seconds.total < choice.seconds.high
        assert choice.fits is None
    assert {choice.placement for choice in found.choices} == {"plain", "reversed"}


def test_the_slowest_rank_and_what_is_moved_make_the_time(asked):
    mask = masks.build("causal", 4096)
    tiles = work_of(mask.cut(((3072, 4096),), ((0, 4096),)), Form.ROW_INTERVALS).tiles
    assert rank(asked()).choices[0].seconds.total == pytest.approx(8 * TILE * tiles + 1e-5, rel=0.05)


MEASURED = SharedCall(
    *(masks.build("causal", 4096).digest, (8, 2), (128, None), False, "bfloat16", "forward"),
    *("crossed", "outer=2,inner=2", "plain", False),
)


@pytest.mark.parametrize(("times", "first"), [(1.03, "plain"), (1.2, "reversed")])
def test_a_measured_call_is_left_only_for_one_that_gains_more_than_predictions_err(asked, times, first):
    before = {choice.placement: choice for choice in rank(asked()).choices}
    seconds = times * before["reversed"].seconds.total
    found = rank(asked(), measured={MEASURED: {"plain": seconds}}).choices
    assert [choice.placement for choice in found] == sorted(before, reverse=first == "reversed")
    about = {choice.placement: choice for choice in found}
    assert about["plain"].seconds.total == about["plain"].seconds.ranked == seconds
    assert "the forward is a measured time of this mask" in about["plain"].proof.notes[0]
    assert about["reversed"].seconds == before["reversed"].seconds
    assert about["reversed"].proof.notes == ()


def test_links_between_hosts_are_said_to_be_unverified(asked):
    quick, slow = (rank(asked(), per_host=2, between=Link(bandwidth)) for bandwidth in (1e11, 1e5))
    for found in (quick, slow):
        assert sum("none was measured (unverified)" in note for note in found.notes) == 1
    assert len(quick.notes) == 1
    assert any("for links between hosts of 0 GB/s" in note for note in slow.notes)
    assert slow.choices[0].seconds.total > quick.choices[0].seconds.total + 9
    assert not any("unverified" in note for note in rank(asked(), per_host=4, between=Link(1e11)).notes)


def test_ranks_beyond_those_that_were_measured_are_said(asked):
    for choice in rank(asked(), ranks=8).choices:
        assert choice.proof.extrapolates
        assert "8 devices; measured up to 2" in choice.proof.outside


def test_memory_says_what_fits(asked):
    takes = [choice.bytes_per_rank for choice in rank(asked()).choices]
    for size, fits in ((min(takes) - 1, False), (max(takes), True)):
        assert {choice.fits for choice in rank(asked(capacity=Capacity(size, reserved=0))).choices} == {fits}


def test_the_lines_to_paste_make_the_mesh_first(asked):
    call = rank(asked()).choices[0].call
    compile(call, "call", "exec")
    imported, mesh, _ = ast.parse(call).body
    assert ast.unparse(imported) == "from torch.distributed.device_mesh import init_device_mesh"
    assert ast.unparse(mesh) == "mesh = init_device_mesh('cpu', (2, 2), mesh_dim_names=('outer', 'inner'))"
