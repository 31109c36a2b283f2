"""Calls of strategies: their schedules, asked of whoever provides them, and kernel time shared out to steps."""

import numpy as np
import pytest

from longca import Device, Problem, masks
from longca.manifests import Layout, Step
from longca.manifests.schedule import Move, Phase
from longca_advice.network import Link, Network, Topology
from longca_advice.timeline import StrategyCall

HEADS = (0, 4), (0, 4)
HOP = Move("p2p", "ring", 8, 8)
SCHEDULE = (Phase(0, moves=(HOP,), touched=16), Phase(1))
NETWORK = Network({"p2p": {2: Link(8.0)}})


@pytest.fixture
def problem():
    return Problem(mask=masks.build("causal", 512), heads_q=4, device=Device("cpu"))


@pytest.fixture
def layout():
    halves = ((0, 256),), ((256, 512),)
    steps = tuple((Step(mine, mine, *HEADS), Step(mine, other, *HEADS)) for mine, other in (halves, halves[::-1]))
    return Layout(steps, halves).made_by("mine", (("ring", 2),))


@pytest.fixture
def call(problem, layout):
    return StrategyCall(problem, layout, SCHEDULE, Topology((("ring", 2),)))


def test_time_goes_to_steps_by_the_tiles_that_they_touch(call):
    # A causal half touches 3 of its 4 tiles, and the second half's queries see all 4 of the first half's keys.
    assert np.array_equal(call.tiles, np.array([[3, 0], [3, 4]]) * 4 * 128 * 128)
    assert call.by_step([6.0, 7.0]) == pytest.approx(np.array([[6, 0], [3, 4]]))


def test_a_call_takes_what_its_timeline_says(call):
    assert call.takes(call.by_step([6.0, 7.0]), NETWORK).seconds == 7
    observed = call.observed(11.0, call.by_step([6.0, 7.0]), NETWORK)
    assert (observed.seconds, observed.expected, observed.touched) == (11, 7, 16)
    assert (observed.beside, observed.beside_p2p, observed.phases) == (0, 1, 2)
