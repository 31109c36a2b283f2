"""longca.prefetch on one device: who plans, who waits, and who raises."""

import subprocess
import sys
import threading
import time

import pytest
import torch

import longca
from longca import masks
from longca.errors import RequestError, UnknownNameError
from longca.kernels.ahead import NotAheadError, Prefetch, check_not_ahead
from longca_builtin.naive import Naive

ASK = {"heads": (4, 2), "head_dim": 8, "dtype": torch.float64, "device": "cpu", "kernel": "naive"}
CPU = torch.device("cpu")


@pytest.fixture
def plans(monkeypatch):
    """The threads that planned, in order. Planning waits for the event `go`."""
    made, plan = [], Naive.plan

    def noted(self, problem):
        plans.begun.set()
        assert plans.go.wait(60)
        made.append(threading.current_thread().name)
        return plan(self, problem)

    class plans:
        go, begun, by = threading.Event(), threading.Event(), made

    plans.go.set()
    monkeypatch.setattr(Naive, "plan", noted)
    yield plans
    plans.go.set()


def fresh(tokens=16):
    return masks.build("causal", tokens)


def finished(handle):
    """The handle, once the side thread has done its work. `wait` would do it in this thread."""
    until = time.monotonic() + 60
    while not handle.done() and time.monotonic() < until:
        time.sleep(0.001)
    assert handle.done()
    return handle


def attend(mask, *, training=True):
    q, k, v = (torch.randn(mask.seqlen_q, heads, 8, dtype=torch.float64) for heads in (4, 2, 2))
    return longca.attention(q.requires_grad_(training), k, v, mask, kernel="naive")


def test_the_call_finds_the_plan_of_the_side_thread(plans):
    mask = fresh()
    finished(longca.prefetch(mask, **ASK)).wait()
    attend(mask).sum().backward()
    attend(mask)
    assert plans.by == ["longca-prefetch"]


def test_a_call_that_comes_before_its_turn_plans_at_once(plans):
    plans.go.clear()
    first, second = fresh(), fresh()
    longca.prefetch(first, **ASK)
    assert plans.begun.wait(60)
    waiting = longca.prefetch(second, **ASK)
    caller = threading.Thread(target=attend, args=(second,), name="caller")
    caller.start()
    plans.go.set()
    caller.join(60)
    attend(first)
    waiting.wait()
    assert sorted(plans.by) in (["caller", "longca-prefetch"], ["longca-prefetch", "longca-prefetch"])
    assert len(plans.by) == 2


def test_a_mask_is_asked_for_once(plans):
    mask = fresh()
    plans.go.clear()
    handle = longca.prefetch(mask, **ASK)
    assert longca.prefetch(mask, **ASK) is handle
    plans.go.set()
    finished(handle)
    attend(mask)
    finished(longca.prefetch(mask, **ASK))
    attend(mask)
    assert plans.by == ["longca-prefetch"]


def test_other_arguments_are_another_plan(plans):
    mask = fresh()
    finished(longca.prefetch(mask, **ASK))
    attend(mask, training=False)
    assert plans.by == ["longca-prefetch", "MainThread"]


def test_an_error_is_raised_by_the_handle_and_by_the_call():
    mask, refused = fresh(), {**ASK, "kernel": "nobody"}
    handle = longca.prefetch(mask, **refused)
    for _ in range(2):
        with pytest.raises(UnknownNameError, match="unknown kernel 'nobody'"):
            handle.wait()
    q = torch.randn(16, 4, 8, dtype=torch.float64, requires_grad=True)
    with pytest.raises(UnknownNameError, match="unknown kernel 'nobody'"):
        longca.attention(q, q[:, :2], q[:, :2], mask, kernel="nobody")
    longca.prefetch(fresh(), **ASK).wait()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"device": None}, "neither a device nor a mesh"),
        ({"device": longca.Device("cpu")}, "give the torch device of the tensors"),
        ({"heads": 4}, "give \\(query heads, KV heads\\)"),
        ({"heads": (3, 2)}, "3 query heads do not divide"),
        ({"kernel": 3}, "give a kernel's name"),
        ({"placement": "zigzag"}, "a placement without a strategy"),
        ({"strategy": "auto"}, "runs on a device mesh"),
    ],
)
def test_what_is_wrong_is_said_at_once(wrong, says):
    with pytest.raises(RequestError, match=says):
        longca.prefetch(fresh(), **{**ASK, **wrong})


def test_a_collective_is_refused_ahead_and_nowhere_else():
    check_not_ahead("it")
    handle = Prefetch(lambda: check_not_ahead("a window"), CPU)
    with pytest.raises(NotAheadError, match="a window is a collective call"):
        handle.wait()
    check_not_ahead("it")


def test_a_process_ends_with_plans_under_way_and_waiting():
    code = """
import time, torch, longca
from longca_builtin.naive import Naive
plan = Naive.plan
Naive.plan = lambda self, problem: time.sleep(0.3) or plan(self, problem)
for _ in range(10):
    mask = longca.masks.build("causal", 16)
    longca.prefetch(mask, heads=(4, 2), head_dim=8, dtype="float64", device="cpu", kernel="naive")
print("ended")
"""
    start = time.monotonic()
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ended\n", "")
    assert time.monotonic() - start < 120
