"""Kernels in workers that compute some heads alone, in cases whose reference has some heads. They are found."""

import os
import sys

import pytest
import torch

from longca import plugins
from longca.manifests import Device
from longca.testing import misbehaving_plugins
from longca_bench.measuring import clocks
from longca_bench.measuring.bench import Bench
from longca_bench.measuring.instruments import Instruments, Phases
from longca_bench.measuring.keeping import Keeper
from longca_bench.measuring.workers import Workers
from longca_bench.measuring.world import World
from longca_bench.suites.cases import expand
from longca_bench.suites.suite import load_suite
from longca_bench.suites.tasks import task_of
from longca_bench.verification import head_sample, reference
from longca_bench.verification.head_sample import HeadSample

CPU = Device("cpu")
SUITE = """
name = "sampled"
version = 1
[[sweep]]
patterns = ["causal"]
kernels = ["{kernels}"]
seqlens = [80]
heads = ["4:4"]
head_dims = [16]
dtypes = ["float32"]
directions = ["{direction}"]
"""


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Measures kernels in one direction. Workers see the misbehaving ones, and the judge samples heads."""
    folder = misbehaving_plugins(tmp_path / "misbehaving")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(head_sample, "SAMPLED_PAIRS", 0)
    for seconds in (clocks.ALLOWED, clocks.SLOWER):  # the subject is content, and other tests use the cores too
        monkeypatch.setitem(seconds, "cpu", 1.0)
    path = os.pathsep.join(map(str, [folder, *filter(None, sys.path)]))
    keeper = Keeper({**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"})
    device = torch.device("cpu")

    def measure(direction, *kernels):
        suite = tmp_path / "sampled.toml"
        suite.write_text(SUITE.format(kernels='", "'.join(kernels), direction=direction), "utf-8")
        bench = Bench(CPU, Instruments(World(device), Workers(keeper, device), Phases(lambda phase: None)), {80})
        registry = plugins.Registry()
        cases = expand(load_suite(str(suite)), registry.kernels)
        assert [case.kernel for case in cases] == list(kernels)
        return [bench.measure(task_of(registry, case, CPU)) for case in cases]

    yield measure
    keeper.close()


@pytest.mark.parametrize(
    ("direction", "suffix"), [("forward", ""), pytest.param("backward", "_backward", marks=pytest.mark.exhaustive)]
)
def test_a_kernel_that_knows_the_compared_heads_is_wrong_on_new_inputs(measured, monkeypatch, direction, suffix):
    """It is right wherever the reference looks: in the first and the last head, and in calls that it knows."""
    outer = HeadSample((0, 3), (0, 3))
    monkeypatch.setattr(reference, "sample_heads", lambda problem: outer if problem.heads_q == 4 else None)
    wrong, right = measured(direction, f"only_outer_heads{suffix}", "naive")
    assert (right.status, right.fields["verified_kv_heads"]) == ("ok", (0, 3)), right.message
    assert wrong.status == "wrong"
    assert "of new inputs" in wrong.message
    failed = [finding for finding in wrong.fields["findings"] if not finding["passed"]]
    assert {finding["head"] for finding in failed} <= {1, 2}


@pytest.mark.exhaustive
def test_a_kernel_that_computes_some_heads_alone_is_wrong(measured):
    wrong, right = measured("forward", "skips_inner_heads", "naive")
    assert right.status == "ok", right.message
    assert wrong.status == "wrong"
    assert len(right.fields["verified_kv_heads"]) == 2
