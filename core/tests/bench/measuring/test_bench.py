"""A case is timed again if its clocks disagree, and the memory of other workers is given up for it."""

from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

import pytest
import torch

from longca_bench.measuring.bench import Bench
from longca_bench.measuring.status import CaseEndError, Status
from longca_bench.verification.findings import Verification

FULL = torch.OutOfMemoryError("CUDA out of memory")
NONE_LEFT = CaseEndError(Status.OOM, "the kernel has no memory left")


@pytest.mark.parametrize(
    ("doubts", "busy", "times", "status"),
    [((), True, 1, "ok"), (("first",), False, 2, "ok"), (("first", "always"), False, 2, "suspect"),
     (("first",), True, 1, "ok"), (("first", "always", "large"), True, 2, "suspect")],
)  # fmt: skip
def test_a_suspected_case_is_timed_once_more(monkeypatch, doubts, busy, times, status):
    instruments, trial = MagicMock(), Mock()
    instruments.world.size, instruments.world.rank = 1, 0
    bench = Bench(Mock(), instruments, {64})

    def suspicion(*, busy):
        known = {1: "first", 2: "always"}[timed.call_count] in doubts
        return "slow" if known and (not busy or "large" in doubts) else ""

    timed = Mock(side_effect=lambda _: {"median": timed.call_count, "machine": {"busy": busy}})
    trial.suspicion, trial.verify_again.return_value = suspicion, Verification(())
    monkeypatch.setattr(Bench, "_planned", lambda self, task: trial)
    monkeypatch.setattr(Bench, "_verified", lambda self, trial: (Verification(()), {}))
    monkeypatch.setattr(Bench, "_timed", lambda self, trial: timed(trial))
    found = bench.measure(Mock())
    assert (found.status, found.fields["median"], timed.call_count) == (status, times, times)


def measured(monkeypatch, *answers, ranks=1, keep_memory=False):
    """The result of a case that is measured with these ends in turn, and the mocks of both."""
    workers, measure = Mock(keep_memory=keep_memory), Mock(side_effect=answers)
    world = Mock(size=ranks, device=torch.device("cpu"))
    monkeypatch.setattr(Bench, "measure", measure)
    instruments = SimpleNamespace(workers=workers, announce=Mock(last="references"), world=world)
    return Bench(Mock(), instruments, ()).result(Mock(), None), measure, workers


@pytest.mark.parametrize(("error", "keep_memory"), [(FULL, False), (NONE_LEFT, True)])
def test_without_memory_other_workers_are_ended_and_the_case_is_measured_once_more(monkeypatch, error, keep_memory):
    result, measure, workers = measured(monkeypatch, error, "right", keep_memory=keep_memory)
    assert (result, measure.call_count) == ("right", 2)
    workers.end.assert_called_once_with()


@pytest.mark.parametrize("ranks", [1, 2])
def test_memory_of_the_runner_is_not_said_to_be_the_kernels(monkeypatch, ranks):
    result, measure, _ = measured(monkeypatch, FULL, FULL, ranks=ranks)
    assert (result.status, measure.call_count) == (Status.OOM, 3 - ranks), "ranks measure together"
    assert result.message.startswith("the runner, which holds inputs and references, has no memory left")


@pytest.mark.parametrize("about", [{}, {"keep_memory": True, "ranks": 2}])
def test_memory_of_a_kernel_is_the_kernels(monkeypatch, about):
    result, measure, workers = measured(monkeypatch, NONE_LEFT, **about)
    assert (result.status, result.message) == (Status.OOM, "the kernel has no memory left")
    assert measure.call_count == 1
    workers.end.assert_not_called()
