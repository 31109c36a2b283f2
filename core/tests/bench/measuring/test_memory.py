"""Errors that say that memory is out."""

import pytest
import torch

from longca_bench.measuring.memory import is_exhausted

NCCL = "NCCL Error 1: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("x"), RuntimeError("can't allocate memory")])
def test_errors_of_memory(error):
    assert is_exhausted(error, str(error))


def test_other_errors():
    assert not is_exhausted(RuntimeError("x"), "x")


@pytest.mark.parametrize(("free", "exhausted"), [(2**20, True), (2**33, False)])
def test_an_error_of_nccl_is_one_of_memory_on_a_full_device(monkeypatch, free, exhausted):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 2**37))
    assert is_exhausted(RuntimeError(NCCL), NCCL) is exhausted
    assert not is_exhausted(RuntimeError("x"), "x")


def test_a_lost_device_is_not_full(monkeypatch):
    def lost():
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "mem_get_info", lost)
    assert not is_exhausted(RuntimeError(NCCL), NCCL)
