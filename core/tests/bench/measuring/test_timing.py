import time

import torch

from longca_bench.measuring import timing
from longca_bench.measuring.timing import time_calls

CPU = torch.device("cpu")


def test_samples_are_the_work_alone():
    timed = time_calls(lambda: time.sleep(0.01), CPU, budget=0.05)
    assert timing.LEAST <= len(timed.samples) <= 6
    assert all(0.01 <= sample < 1 for sample in timed.samples)
    assert sorted(timed.samples)[0] <= timed.median <= sorted(timed.samples)[-1]


def test_at_least_three_samples_and_at_most_fifty():
    assert len(time_calls(lambda: time.sleep(0.02), CPU, budget=0.0).samples) == timing.LEAST
    assert len(time_calls(lambda: None, CPU, budget=10.0).samples) == timing.SAMPLES


def test_warm_up_goes_on_until_calls_agree():
    waits = iter([0.08, 0.04, 0.01, 0.01, *[0.01] * 60])
    timed = time_calls(lambda: time.sleep(next(waits)), CPU, budget=0.0)
    assert len(timed.warm_up) >= 4
    assert max(timed.samples) < 0.04
