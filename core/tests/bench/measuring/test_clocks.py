"""The runner's clock believes a worker's samples within what a call needs beside itself."""

import pytest
import torch

from longca_bench.measuring.clocks import ALLOWED, Clocks


def clocks(calls, late=0.0):
    made = Clocks(torch.device("cpu"))
    said = [made.take(*call, late) for call in calls]
    return made, said


def test_messages_are_allowed():
    honest, said = clocks([(0.010, 0.0105)] * 4 + [(0.010, 0.9)])
    assert (honest.fault(), said) == ("", [""] * 5)
    found = honest.fields()
    assert found["samples"] == pytest.approx(0.05)
    assert found["judge"] == pytest.approx(0.942)
    assert found["distance"] == pytest.approx(0.0005)
    assert found["allowed"] == pytest.approx(ALLOWED["cpu"] + 0.001)


def test_a_slow_clock_of_the_worker_is_found_on_a_busy_machine_too():
    slow, _ = clocks([(0.005, 0.0102)] * 5)
    assert "clocks disagree: a call took 5 ms by the worker's, and 10.2 ms by the runner's" in slow.fault()
    assert slow.fault(busy=True) == ""
    assert "clocks disagree" in clocks([(0.005, 0.025)] * 5)[0].fault(busy=True)


def test_a_clock_that_is_slow_in_most_calls_is_found():
    assert "clocks disagree" in clocks([(0.001, 0.02)] * 6 + [(0.02, 0.0201)] * 3)[0].fault()


def test_a_fast_clock_of_the_worker_is_found():
    assert "clocks disagree" in clocks([(0.010, 0.0105), (0.010, 0.009)])[0].fault()


def test_a_device_that_goes_on_after_its_calls_is_found():
    _, said = clocks([(0.01, 0.0105)] * 3, late=0.05)
    assert said[0] == "", "the host's own pause can make a single wait long"
    assert "went on for 50 ms after the call had ended, and 2 of 2 calls were late" in said[1]
