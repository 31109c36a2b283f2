"""The judge's clock believes a worker's samples within what a call needs beside itself."""

import os

import pytest
import torch

from longca_bench.measuring.clocks import Clocks
from longca_bench.measuring.commands import Answer
from longca_bench.measuring.heard import Heard, Moment

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    monkeypatch.setattr("longca_bench.measuring.clocks.PAUSE", 0.0)


def clocks(calls, latency=1e-4, computed=0.0, kept=None):
    made = Clocks(CPU, latency, lambda: kept)
    for sample, ended, done, *waited in calls:
        wait = waited[0] if waited else 0.0
        made.take(sample, Heard(Answer(), Moment(ended, wait, computed), Moment(done, wait, computed)), 1e-4)
    return made


def test_clocks_that_begin_in_the_judge_excuse_what_others_took_from_it_and_its_workers(monkeypatch):
    asked = []
    monkeypatch.setattr("longca_bench.measuring.clocks.kept_from_us", lambda own: asked.append([*own]) or (lambda: 1e3))
    made = Clocks.begin(CPU, 1e-4)
    assert asked == [[os.getpid()]]
    made.take(0.010, Heard(Answer(), Moment(0.9, 0.9, 0.0), Moment(0.9, 0.9, 0.0)), 1e-4)
    assert made.fault() == ""


def test_messages_and_copies_are_allowed():
    honest = clocks([(0.010, 0.0105, 0.0110)] * 5)
    assert honest.fault() == ""
    found = honest.fields()
    assert found["samples"] == pytest.approx(0.05)
    assert found["judge"] == pytest.approx(0.0525)
    assert found["distance"] == pytest.approx(0.0005)
    assert found["allowed"] == pytest.approx(0.001 + 8e-4 + 0.001)


def test_a_slow_clock_of_the_worker_is_found():
    assert (
        "clocks disagree: a call took 5 ms by the worker's, and 10.2 ms by the judge's"
        in clocks([(0.005, 0.0102, 0.0103)] * 5).fault()
    )


def test_a_fast_clock_of_the_worker_is_found():
    assert "clocks disagree" in clocks([(0.010, 0.0105, 0.011), (0.010, 0.009, 0.011)]).fault()


def test_an_end_that_is_announced_too_early_is_found():
    assert "came 50 ms after its end" in clocks([(0.001, 0.0012, 0.051)] * 5).fault()


def test_neighbours_that_disturb_some_calls_accuse_nobody():
    quiet, disturbed = (0.010, 0.0105, 0.011), (0.010, 0.050, 0.060)
    assert clocks([quiet, disturbed, disturbed, quiet, disturbed]).fault() == ""


def test_a_clock_that_is_slow_in_most_calls_is_found():
    honest, hidden = (0.030, 0.0305, 0.031), (0.010, 0.0305, 0.031)
    assert "a call took 10 ms by the worker's, and 30.5 ms" in clocks([honest, hidden, hidden] * 5).fault()
    assert clocks([honest, honest, hidden] * 5).fault() == "", "their median is honest"


def test_time_without_a_core_does_not_count():
    assert clocks([(0.010, 0.050, 0.051, 0.039)] * 5).fault() == ""
    assert clocks([(0.010, 0.050, 0.051, 0.020)] * 5).fault() != ""


def test_time_in_which_a_workers_own_threads_took_its_core_counts():
    computed = len(os.sched_getaffinity(0)) * 0.012
    assert Moment(0.050, 0.039, computed).excused(0.010) == pytest.approx(0.039)
    assert Moment(0.050, 0.039, computed + 0.030).excused(0.010) == pytest.approx(0.009)
    assert Moment(0.050, 0.039, computed + 0.050).excused(0.010) == 0.0


@pytest.mark.parametrize(
    ("seconds", "made", "objection"), [((0.3, 0.2, 0.045), 3, ""), ((0.3,) * 12, 12, "10 calls on new inputs took 300")]
)
def test_one_burst_as_fast_as_the_samples_is_enough(seconds, made, objection):
    held, bursts = clocks([(0.004, 0.0045, 0.005)] * 5), list(seconds)
    found = held.hold(10, lambda: (Heard(Answer(), Moment(ended := bursts.pop(0)), Moment(ended)), 0.0))
    assert len(seconds) - len(bursts) == made
    assert objection in found
    assert bool(found) == bool(objection)


@pytest.mark.parametrize(
    ("seconds", "computed", "is_disturbed", "objection"),
    [
        (0.115, 0.9, False, ""),
        (0.13, 0.9, True, "a call on new inputs took 130 ms, and a call that was timed 100 ms"),
        (0.3, 0.23, True, ""),
        (0.3, 0.23, False, "took 300 ms"),
        (0.3, 0.25, True, "took 300 ms"),
        (0.5, 0.23, True, "took 500 ms"),
    ],
)
def test_a_call_on_new_inputs_takes_as_long_as_a_sample_or_computes_as_long_beside_others(
    seconds, computed, is_disturbed, objection
):
    held = clocks([(0.100, 0.1005, 0.101)] * 5, computed=0.2)
    ended = Moment(seconds, computed=computed)
    found = held.hold(1, lambda: (Heard(Answer(seconds=seconds), ended, ended), 0.0), lambda: is_disturbed)
    assert objection in found
    assert bool(found) == bool(objection)


@pytest.mark.parametrize(("count", "done", "is_held"), [(1, 0.125, True), (1, 0.14, False), (4, 0.5, False)])
def test_an_end_that_is_announced_too_early_on_new_inputs_is_found(count, done, is_held):
    held = clocks([(0.100, 0.1005, 0.105)] * 5)
    found = held.hold(count, lambda: (Heard(Answer(seconds=1e-6), Moment(1e-3), Moment(done)), 0.0))
    assert (found == "") is is_held
    assert is_held or "on new inputs took" in found


@pytest.mark.parametrize(("computed", "is_held"), [(0.1, True), (0.2, False)])
def test_a_call_on_new_inputs_that_its_own_threads_kept_waiting_is_no_faster_for_it(computed, is_held):
    held = clocks([(0.100, 0.1005, 0.101)] * 5)
    late = Moment(0.3, 0.19, computed * len(os.sched_getaffinity(0)))
    assert (held.hold(1, lambda: (Heard(Answer(seconds=0.1), late, late), 0.0)) == "") is is_held


@pytest.mark.parametrize(("kept", "is_believed"), [(0.0, False), (0.1, False), (0.35, True), (None, True)])
def test_waiting_that_nobody_else_caused_is_not_excused(kept, is_believed):
    """A kernel of 60 ms whose threads crowd one of several cores, and that hides 34 ms of each call."""
    crowded = clocks([(0.026, 0.0605, 0.061, 0.034)] * 10, computed=0.05, kept=kept)
    assert (crowded.fault() == "") is is_believed


def test_short_waits_need_no_explanation():
    assert clocks([(0.001, 0.0024, 0.0025, 0.001)] * 50, kept=0.0).fault() == ""


def test_short_calls_are_made_in_bursts_that_memory_bounds():
    assert clocks([(0.010, 0.0105, 0.011)] * 5).burst(2**20) == 1
    short = clocks([(0.0004, 0.0009, 0.001)] * 5)
    assert short.burst(2**20) == 19
    assert short.burst(2**26) == 4
    assert short.burst(2**30) == 1


@pytest.mark.parametrize(("seconds", "is_held"), [(0.0009, True), (0.0011, False)])
def test_a_short_call_on_a_cuda_device_may_be_a_little_slower(seconds, is_held):
    made = Clocks(torch.device("cuda"), 0.0)
    made.take(6e-4, Heard(Answer(), Moment(7e-4), Moment(7e-4)), 0.0)
    ended = Moment(seconds)
    found = made.hold(1, lambda: (Heard(Answer(seconds=seconds), ended, ended), 0.0))
    assert (found == "") is is_held
