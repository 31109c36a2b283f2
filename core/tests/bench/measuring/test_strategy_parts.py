"""Parts of a strategy's time, by clocks that are given, and the kernel on one device with which it is compared."""

from itertools import cycle
from types import SimpleNamespace

import pytest
import torch

from longca_bench.measuring.commands import Traffic
from longca_bench.measuring.strategy_parts import computing_and_communication, equal_share, verify_baseline
from longca_bench.measuring.timing import LEAST, SAMPLES
from longca_bench.measuring.world import World
from longca_builtin.naive import Naive

TRAFFIC = {"p2p": Traffic(calls=2, size=100, sent=100)}


class Strategy:
    """A strategy whose parts take the given seconds, by turns. It notes the order of its parts."""

    def __init__(self, **seconds):
        self.order = []
        self._seconds = {name: cycle(each) for name, each in seconds.items()}

    def repeat(self, what):
        self.order.append(what)
        return next(self._seconds[what]), None


def fields(strategy, traffic=TRAFFIC, budget=10.0):
    instruments = SimpleNamespace(world=World(torch.device("cpu")), announce=lambda _: None, budget=budget)
    return computing_and_communication(strategy, traffic, instruments)


@pytest.mark.parametrize(
    ("whole", "hidden"),
    [(1.5, 0.0), (1.0, 1.0), (1.1, 0.8), (2.0, 0.0)],
    ids=["nothing overlaps", "all of it", "most of it", "slower than apart"],
)
def test_what_the_whole_does_not_take_is_hidden(whole, hidden):
    found = fields(Strategy(whole=[whole], compute=[1.0], all=[0.5]))
    assert found["hidden"] == pytest.approx(hidden)
    assert found["hidden_interval"] == pytest.approx((hidden, hidden))
    assert found["rank_compute_seconds"] == (1.0,)
    assert found["communication"]["all"] == found["communication"]["p2p"]
    assert found["communication"]["all"]["seconds"] == 0.5


def test_nothing_is_said_where_computing_alone_takes_longer_than_the_whole():
    found = fields(Strategy(whole=[0.99], compute=[1.0], all=[0.5]))
    assert (found["hidden"], found["hidden_interval"]) == (None, None)
    assert found["rank_compute_seconds"] == (1.0,)


def test_parts_take_turns_and_have_as_many_samples():
    strategy = Strategy(whole=[1.2], compute=[1.0], all=[0.5])
    fields(strategy, budget=1e4)
    rounds = strategy.order[-3 * SAMPLES["cpu"] :]
    assert rounds == ["whole", "compute", "all"] * SAMPLES["cpu"]
    slow = Strategy(whole=[1.2], compute=[1.0], all=[0.5])
    fields(slow, budget=0.0)
    assert slow.order[-3 * LEAST :] == ["whole", "compute", "all"] * LEAST
    assert len(slow.order) == 3 * (2 + LEAST), "two calls warm each part up"


def test_what_noise_hides_is_not_said():
    noisy = [1.0, 1.9, 1.1, 1.6]
    found = fields(Strategy(whole=noisy, compute=[1.0], all=[0.5]), budget=0.0)
    assert found["hidden"] is None
    assert found["hidden_interval"] == (0.0, 1.0)


def test_each_kind_is_measured_by_itself_where_there_are_several():
    traffic = {**TRAFFIC, "push": Traffic(calls=1, size=50, sent=50)}
    found = fields(Strategy(whole=[1.2], compute=[1.0], all=[0.5], p2p=[0.4], push=[0.2]), traffic)
    seconds = {kind: each["seconds"] for kind, each in found["communication"].items()}
    assert seconds == {"all": 0.5, "p2p": 0.4, "push": 0.2}
    assert found["sent_bytes"] == {"p2p": (100,), "push": (50,)}


def test_without_communication_nothing_is_hidden():
    found = fields(Strategy(whole=[1.2], compute=[1.0]), {})
    assert (found["hidden"], found["hidden_interval"], found["communication"]) == (None, None, {})


ROUGH = 0.9 * torch.finfo(torch.bfloat16).eps / 2


class RoughLse(Naive):
    """As far off as a sum of rounded weights may be; its backward knows."""

    def forward(self, *arguments, **buffers):
        out, lse = super().forward(*arguments, **buffers)
        return out, lse.add_(ROUGH)

    def backward(self, dout, q, k, v, out, lse, plan, **buffers):
        return super().backward(dout, q, k, v, out, lse - ROUGH, plan, **buffers)


@pytest.mark.parametrize("rough_lse", [False, True])
def test_a_rough_lse_passes_where_the_offer_says_so(setup, rough_lse):
    made = setup(dtype="bfloat16", direction="forward")
    found = verify_baseline(RoughLse(), made.problem, made.inputs, made.expected, rough_lse=rough_lse)
    assert {finding.tensor: finding.passed for finding in found} == {"out": True, "lse": rough_lse}


def test_of_a_backward_its_gradients_are_found(setup):
    made = setup(dtype="bfloat16")
    found = verify_baseline(RoughLse(), made.problem, made.inputs, made.expected, rough_lse=False)
    assert [(finding.tensor, finding.passed) for finding in found] == [("dq", True), ("dk", True), ("dv", True)]


@pytest.mark.parametrize(
    ("ranks", "share"), [(1, ((0, 1, 2, 3), (0, 1))), (2, ((0, 1), (0,))), (4, ((0,), (0,))), (3, None), (8, None)]
)
def test_an_equal_share_of_the_heads(setup, ranks, share):
    problem = setup().problem
    assert (problem.heads_q, problem.heads_kv) == (4, 2)
    found = equal_share(problem, ranks)
    assert (found and (found.heads_q, found.heads_kv)) == share
