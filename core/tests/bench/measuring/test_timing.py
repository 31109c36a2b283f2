"""When warm-up and sampling stop, and when ranks tell each other their times."""

import time
from functools import partial
from unittest.mock import Mock

import pytest
import torch

from longca_bench.measuring import timing
from longca_bench.measuring.timing import (
    LEAST,
    LOAD,
    calls_in_a_row,
    loading_calls,
    take_samples,
    time_calls,
    timed_call,
)
from longca_bench.measuring.world import World

CPU = World(torch.device("cpu"))


def test_samples_are_the_work_alone():
    timed = time_calls(lambda: time.sleep(0.01), CPU, budget=0.05)
    assert timing.LEAST <= len(timed.samples) <= 6
    assert all(0.01 <= sample < 1 for sample in timed.samples)
    assert sorted(timed.samples)[0] <= timed.median <= sorted(timed.samples)[-1]


def test_at_least_three_samples_and_at_most_thirty():
    assert len(time_calls(lambda: time.sleep(0.02), CPU, budget=0.0).samples) == timing.LEAST
    assert len(time_calls(lambda: None, CPU, budget=10.0).samples) == timing.SAMPLES["cpu"]


def test_warm_up_goes_on_until_calls_agree():
    waits = iter([0.08, 0.04, 0.01, 0.01, *[0.01] * 60])
    timed = time_calls(lambda: time.sleep(next(waits)), CPU, budget=0.0)
    assert len(timed.warm_up) >= 4
    assert max(timed.samples) < 0.04


def test_every_result_is_inspected_outside_the_timed_region():
    seen = []
    once = partial(timed_call, lambda: "a result", CPU)
    timed = take_samples(once, CPU, 0.0, lambda result: (time.sleep(0.05), seen.append(result)))
    assert seen == ["a result"] * (len(timed.warm_up) + LEAST)
    assert max(timed.samples) < 0.05


@pytest.mark.parametrize(("seconds", "calls"), [(0.0, 0), (1e-3, 50), (0.03, 2), (0.2, 1), (0.25, 0), (3.0, 0)])
def test_calls_that_keep_a_device_busy_take_as_long_together(seconds, calls):
    assert loading_calls(seconds) == calls


def test_a_slow_host_makes_fewer_calls_that_keep_a_device_busy():
    assert loading_calls(1e-4) == 500
    assert loading_calls(1e-4, pace=1.5e-4) == 500, "the device is slower than half the pace"
    assert loading_calls(1e-4, pace=2e-3) == 50, "twice the time of LOAD"
    assert loading_calls(0.3, pace=2e-3) == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_launching_is_in_no_sample_of_a_cuda_device():
    x = torch.randn(4096, 4096, dtype=torch.bfloat16, device="cuda")

    def slowly():
        time.sleep(timing.LEAD / 2)
        return x @ x

    world = World(x.device)
    at_once, late = (time_calls(call, world, budget=0.05).median for call in (lambda: x @ x, slowly))
    assert late < at_once + timing.LEAD / 4


def test_calls_that_load_a_device_end_after_their_time(monkeypatch):
    """A kernel that says a hundredth of its time is called a hundred times as often otherwise."""
    now, calls = [0.0], []
    monkeypatch.setattr(timing, "flush_l2", lambda: None)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing.torch.cuda, "Event", Mock)

    def call():
        now[0] += LOAD / 2
        calls.append(now[0])
        return len(calls)

    world = Mock(size=1)
    assert calls_in_a_row(call, 3, world) == 3
    assert calls_in_a_row(call, 300, world) == 3 + 5
    assert world.wait.call_count == 2, "the device has done them"
    assert calls_in_a_row(call, 20, Mock(size=2)) == 8 + 20, "ranks wait for each other"
