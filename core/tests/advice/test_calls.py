"""Calls of strategies: their schedules, asked of whoever provides them, and kernel time shared out to steps."""

import sys
from types import ModuleType

import numpy as np
import pytest

from longca import Device, Problem, masks
from longca.errors import PluginError
from longca.loading import call_function
from longca.manifests import Layout, Step, StrategyManifest, Transport
from longca.manifests.schedule import Move, Phase
from longca.plugins import Registry
from longca_advice.network import Link, Network, Topology
from longca_advice.timeline import StrategyCall, schedule_of

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


def registry(monkeypatch, schedule, function=None, **fields):
    """One that provides a strategy whose schedule is a function."""
    module = ModuleType("a_module_of_schedules")
    module.of = function
    monkeypatch.setitem(sys.modules, module.__name__, module)
    about = {"title": "Mine", "upstream": "-", "license": "MIT", "axes": ("ring",), "placements": ("contiguous",)}
    manifest = StrategyManifest(name="mine", layout="a:b", implementation="a:b", schedule=schedule, **about, **fields)
    found = Registry()
    monkeypatch.setattr(found, "strategy", lambda _: manifest)
    monkeypatch.setattr(found, "call", lambda *about: call_function(*about[:2], about[2:], "longca-mine"))
    return found


def test_a_strategy_says_what_it_does(monkeypatch, problem, layout):
    asked = []
    found = registry(monkeypatch, "a_module_of_schedules:of", lambda *of: asked.append(of) or SCHEDULE)
    assert schedule_of(found, problem, layout, nccl=True) == SCHEDULE
    assert asked == [(problem, layout, True)]


def test_a_strategy_of_several_transports_is_told_which(monkeypatch, problem, layout):
    asked, both = [], tuple(Transport)[1:]
    function = lambda *of: asked.append(of[3:]) or SCHEDULE  # noqa: E731
    found = registry(monkeypatch, "a_module_of_schedules:of", function, transports=both)
    assert schedule_of(found, problem, layout, True) == schedule_of(found, problem, layout, True, both[1]) == SCHEDULE
    assert asked == [(Transport.AUTO,), (Transport.COPY_ENGINE,)]
    old = registry(monkeypatch, "a_module_of_schedules:of", lambda problem, layout, nccl: SCHEDULE, transports=both)
    with pytest.raises(PluginError, match=r"of of plugin longca-mine raised TypeError.* takes 3 .* but 4 were given"):
        schedule_of(old, problem, layout, nccl=True)


def test_or_it_does_not(monkeypatch, problem, layout):
    assert schedule_of(registry(monkeypatch, None), problem, layout, nccl=True) is None


@pytest.mark.parametrize("wrong", [None, [*SCHEDULE], ("phase",)])
def test_what_is_no_schedule_is_refused(monkeypatch, problem, layout, wrong):
    found = registry(monkeypatch, "a_module_of_schedules:of", lambda *_: wrong)
    with pytest.raises(PluginError, match=f"of of plugin longca-mine returned a {type(wrong).__name__}"):
        schedule_of(found, problem, layout, nccl=True)


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
