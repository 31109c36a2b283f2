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
from longca_bench.reports.layout_arrangement import Arrangement, arrangement_json, arrangement_tables
from longca_bench.reports.layout_picture import draw_layout, draw_placements

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


def test_work_is_counted_by_rank():
    made = ring((Phase(0, moves=(HOP,)), Phase(1)))
    triangle, square = HALF * (HALF + 1) // 2, HALF * HALF
    assert made.pairs == [4 * triangle, 4 * (triangle + square)]
    assert made.busy_steps == [1, 2], "the first rank sees nothing of the second one's keys"
    assert made.imbalance == pytest.approx(2 * (triangle + square) / (2 * triangle + square))
    assert made.sent == 100


def test_chunks_of_heads_are_calls_of_one_step():
    assert [step for step, *_ in ring(None).calls] == [0, 1]
    made = ring((Phase(0, 0.5), Phase(0, 0.5), Phase(1)))
    assert made.calls == [(0, 0.0, 0.5), (0, 0.5, 1.0), (1, 0.0, 1.0)]
    assert [made.step(0, call).heads_q for call in range(3)] == [(0, 2), (2, 4), (0, 4)]


def test_each_rank_paints_its_own_pairs_in_its_own_colour():
    first, second = draw_layout(ring((Phase(0, moves=(HOP,)), Phase(1)))).axes[:2]
    mask, queries, *_ = (image.get_array() for image in second.images)
    assert (mask[40, 8] == queries[40, 0]).all(), "the second rank's queries see the first one's keys"
    assert (mask[8, 40] == 1).all(), "later keys are hidden"
    assert (mask[8, 4] > queries[8, 0]).any(), "an earlier call is paler"
    assert (queries[0] == queries[HALF - 1]).all()
    assert (queries[0] != queries[HALF]).any()
    assert first.get_xlabel() == "beside it: k, v by p2p along ring"
    assert second.get_xlabel() == ""


def test_pictures_are_drawn_with_and_without_transfers_and_refuse_many_ranks():
    made = ring((Phase(0, moves=(HOP,)), Phase(1)))
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
