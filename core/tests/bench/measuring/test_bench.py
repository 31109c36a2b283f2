"""A case is timed again if its clocks disagree, and the memory of other workers is given up for it."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from longca_bench.measuring.bench import Bench
from longca_bench.measuring.status import CaseEndError, Status

FULL = torch.OutOfMemoryError("CUDA out of memory")
NONE_LEFT = CaseEndError(Status.OOM, "the kernel has no memory left")


def measured(monkeypatch, *answers, ranks=1, keep_memory=False):
    """The result of a case that is measured with these ends in turn, and the mocks of both."""
    workers, measure = Mock(keep_memory=keep_memory), Mock(side_effect=answers)
    world = Mock(size=ranks, device=torch.device("cpu"))
    monkeypatch.setattr(Bench, "measure", measure)
    instruments = SimpleNamespace(workers=workers, announce=Mock(last="references"), world=world)
    return Bench(Mock(with_backward=()), instruments).result(Mock(), None), measure, workers


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
