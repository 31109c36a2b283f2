"""Arrangements and their pictures, on a ring that is written down by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from longca import masks
from longca.errors import RequestError
from longca.manifests import Device, Layout, Problem
from longca.manifests.schedule import Move, Phase
from longca.manifests.steps import Step
from longca_bench.reports.layout_arrangement import Arrangement, Call, arrangement_json, arrangement_tables
from longca_bench.reports.layout_picture import CELLS, Scene, draw_layout, draw_placements

SEQLEN, HALF = 64, 32
HOP = Move("p2p", "ring", 100, 100, carries="k, v")
SHARDS = (((0, HALF),), ((HALF, SEQLEN),))


def ring(schedule, pattern="causal", heads=4):
    """Two ranks with half of the tokens each, whose keys are exchanged after the first step."""
    problem = Problem(mask=masks.build(pattern, SEQLEN), heads_q=heads, device=Device("cpu"))
    steps = tuple(
        tuple(Step(SHARDS[rank], SHARDS[(rank + turn) % 2], (0, heads), (0, heads)) for turn in range(2))
        for rank in range(2)
    )
    layout = Layout(steps, SHARDS, "by_hand", (("ring", 2),))
    return Arrangement("By hand", problem, layout, "contiguous", schedule)


def bars(schedule):
    return [
        (bar.lane, bar.label, round(bar.start, 3), round(bar.stop, 3)) for bar in Scene(ring(schedule, "full")).bars()
    ]


def test_work_is_counted_by_rank():
    made = ring((Phase(0, moves=(HOP,)), Phase(1)))
    triangle, square = HALF * (HALF + 1) // 2, HALF * HALF
    assert made.pairs == [4 * triangle, 4 * (triangle + square)]
    assert made.busy_steps == [1, 2], "the first rank sees nothing of the second one's keys"
    assert made.imbalance == pytest.approx(2 * (triangle + square) / (2 * triangle + square))
    assert made.sent == 100


def test_a_move_beside_a_call_hides_and_one_before_it_does_not():
    call = float(HALF * HALF * 4)
    hidden = bars((Phase(0, moves=(HOP,)), Phase(1)))
    assert hidden == [
        ("ring", "k, v", 0, 0.6 * call),
        ("computes", "step 0", 0, call),
        ("computes", "step 1", call, 2 * call),
    ]
    exposed = bars((Phase(0, moves=(HOP,), beside=False), Phase(1)))
    assert exposed[1] == ("computes", "step 0", 0.6 * call, 1.6 * call)


def test_a_move_over_two_phases_ends_with_the_second():
    long = replace(HOP, spread=2)
    call = float(HALF * HALF * 4)
    found = bars((Phase(moves=(long,)), Phase(0), Phase(1)))
    assert [bar[2] for bar in found] == [0, 0, call]


def test_chunks_of_heads_are_calls_of_one_step():
    assert [call.step for call in ring(None).calls] == [0, 1]
    made = ring((Phase(0, 0.5), Phase(0, 0.5), Phase(1)))
    assert made.calls == [Call(0, 0.0, 0.5), Call(0, 0.5, 0.5), Call(1)]
    assert [made.step(0, call).heads_q for call in range(3)] == [(0, 2), (2, 4), (0, 4)]


def test_each_rank_paints_its_own_pairs_in_its_own_colour():
    scene = Scene(ring((Phase(0, moves=(HOP,)), Phase(1))))
    ((heads, steps),) = scene.panels(1).items()
    assert heads == (0, 4)
    painted = scene.picture((rank, step, 1.0) for rank, step in steps.items())
    assert (painted[40, 8] == scene.colour(1)).all(), "the second rank's queries see the first one's keys"
    assert (painted[8, 40] == 1).all(), "later keys are hidden"
    assert (scene.strip(scene.shards)[[0, HALF - 1, HALF]] == [scene.colour(rank) for rank in (0, 0, 1)]).all()
    assert scene.moves(0) == ["beside it: k, v by p2p along ring"]
    assert scene.moves(1) == []


def test_pictures_are_drawn_with_and_without_transfers_and_refuse_many_ranks():
    made = ring((Phase(0, moves=(HOP,)), Phase(1)))
    assert len(draw_layout(made).subfigs) == 2
    assert draw_layout(ring(None)).get_suptitle().endswith("so no transfers are drawn.")
    shown = [axes.get_title() for axes in draw_placements({"contiguous": made, "zigzag": "too short"}).axes]
    assert shown == ["contiguous", "zigzag", "", ""]
    nothing: Any = ((),) * 16
    layout = replace(
        made.layout, steps=made.layout.steps + nothing, shards=SHARDS + nothing, axis_sizes=(("ring", 18),)
    )
    with pytest.raises(RequestError, match="room for 16 ranks, and this mesh has 18"):
        draw_layout(replace(made, layout=layout))


def test_transfers_are_summed_by_content_and_unknown_without_a_schedule():
    (table,) = arrangement_tables(ring(None))
    assert any("states no schedule" in note for note in table.notes)
    assert arrangement_json(ring(None))["sent"] is None
    made = ring((Phase(0, moves=(HOP, HOP)), Phase(1, moves=(replace(HOP, carries="dk, dv"),), beside=False)))
    _, transfers = arrangement_tables(made)
    assert [[cell.text for cell in row][:4] for row in transfers.rows] == [
        ["k, v", "p2p", "ring", "2"],
        ["dk, dv", "p2p", "ring", "1"],
        ["all", "", "", "3"],
    ]
    assert [each["beside"] for each in arrangement_json(made)["transfers"]] == [2, 0]


@pytest.mark.parametrize(("seqlen", "tokens", "count"), [(CELLS, 1, CELLS), (1000, 2, 500), (1001, 2, 501)])
def test_long_sequences_are_drawn_in_blocks(seqlen, tokens, count):
    made = ring(None)
    scene = Scene(replace(made, layout=replace(made.layout, shards=(((0, seqlen),), ()))))
    middle = seqlen // 2
    assert (scene.tokens, len(scene.cells(()))) == (tokens, count)
    assert (scene.cells(((0, middle),)) ^ scene.cells(((middle, seqlen),))).all(), "every cell is one rank's"
