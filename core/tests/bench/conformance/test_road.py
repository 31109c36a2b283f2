"""Tests of the road to a kernel that is examined."""

from __future__ import annotations

import time

import pytest

from longca.manifests import Device
from longca.plugins import registry
from longca_bench.conformance.road import Road
from longca_bench.measuring.remote_kernel import RemoteKernel


def test_starting_a_worker_takes_no_time_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    start = RemoteKernel.start

    def slowly(kernel: RemoteKernel) -> None:
        start(kernel)
        time.sleep(2.0)

    monkeypatch.setattr(RemoteKernel, "start", slowly)
    kernel = Road(timeout=100.0).kernel(registry(), "naive", Device("cpu"))
    assert isinstance(kernel, RemoteKernel)
    deadline = kernel._workers.deadline
    assert deadline is not None
    assert deadline - time.monotonic() > 98.5
    kernel.end()
