"""The calls of a trial besides its samples."""

from itertools import pairwise

import pytest
import torch

from longca.manifests import Device
from longca_bench.measuring.bench import Bench
from longca_bench.measuring.commands import Mode
from longca_bench.measuring.kernel_trial import KernelTrial
from longca_bench.measuring.messages import Setup
from longca_bench.measuring.worker import Workers
from longca_bench.measuring.world import Instruments, Phases, World
from longca_bench.suites.cases import expand
from longca_bench.suites.suite import load_suite
from longca_bench.suites.tasks import task_of
from longca_bench.verification import head_sample, tokens
from longca_builtin import blockwise

from ..peak import Peak

CPU = Device("cpu")
SUITE = """
name = "one"
version = 1
[[sweep]]
patterns = ["{pattern}"]
kernels = ["naive"]
seqlens = [{seqlen}]
heads = ["{heads}"]
head_dims = [16]
dtypes = ["{dtype}"]
directions = ["{direction}"]
sinks = {sinks}
"""


def measured(core, tmp_path, direction, announce=lambda phase: None, **changes):
    """The result of a case."""
    about = {"pattern": "causal", "seqlen": 80, "heads": "4:2", "dtype": "float32", "sinks": "false", **changes}
    (tmp_path / "one.toml").write_text(SUITE.format(direction=direction, **about), "utf-8")
    device = torch.device("cpu")
    workers = Workers(device)
    instruments = Instruments(World(device), workers, Phases(announce))
    bench = Bench(Setup(CPU, frozenset({about["seqlen"]})), instruments)
    try:
        (case,) = expand(load_suite(str(tmp_path / "one.toml")), core.kernels)
        return bench.measure(task_of(core, case, CPU))
    finally:
        workers.close()


@pytest.mark.parametrize("direction", [pytest.param("forward", marks=pytest.mark.exhaustive), "backward"])
def test_calls_by_the_hosts_clock_are_new_work_and_checked(core, tmp_path, monkeypatch, direction):
    """A GPU has such calls. A kernel that kept the results of its last inputs would fake their times."""
    calls, run, inspect = [], KernelTrial._run, KernelTrial.inspect

    def seen(trial, mode, **how):
        calls.append((mode, torch.cat([x.clone().flatten() for x in trial._tensors.values()])))
        return run(trial, mode, **how)

    def inspected(trial, results):
        calls.append(("inspected", results))
        inspect(trial, results)

    monkeypatch.setattr(KernelTrial, "_run", seen)
    monkeypatch.setattr(KernelTrial, "inspect", inspected)
    monkeypatch.setattr(KernelTrial, "wall", lambda trial, timing: tuple(trial._walled() for _ in range(3)))
    result = measured(core, tmp_path, direction)
    assert result.status in ("ok", "suspect"), result.message  # other tests use the cores too
    assert all(seconds > 0 for seconds in result.fields["wall"])
    first = next(n for n, (what, _) in enumerate(calls) if what is Mode.WALL)
    assert [what for what, _ in calls[first : first + 6]] == [Mode.WALL, "inspected"] * 3
    inputs = [x for what, x in calls[: first + 6] if what in (Mode.TIMED, Mode.WALL)][-4:]
    assert not any(torch.equal(a, b) for a, b in pairwise(inputs))


def test_sinks_are_verified_with_their_gradient(core, tmp_path):
    result = measured(core, tmp_path, "backward", sinks="true", dtype="bfloat16")
    assert result.status in ("ok", "suspect"), result.message
    found = {finding["tensor"] for finding in result.fields["findings"]}
    assert {"out", "lse", "dq", "dk", "dv", "dsinks", "dsinks after timing"} <= found


@pytest.mark.exhaustive
@pytest.mark.parametrize(("direction", "most"), [("forward", 10), ("backward", 14)])
def test_a_verification_takes_little_memory(core, tmp_path, monkeypatch, direction, most):
    """At 512 K tokens q has 8 GiB. One result is read at a time, and no comparison takes the memory of a whole one."""
    monkeypatch.setattr(tokens, "_TOGETHER", 64)
    monkeypatch.setitem(blockwise._SCORES, "cpu", 2**15)
    monkeypatch.setattr(head_sample, "SAMPLED_PAIRS", 1)
    long = {"pattern": "causal_sliding_window", "seqlen": 2048, "heads": "64:8", "dtype": "bfloat16"}
    phases, peaks = ["begin"], {}
    with Peak() as peak:

        def announce(phase):
            peaks[phases[-1]], peak.most = peak.most, peak.now
            phases.append(phase)

        result = measured(core, tmp_path, direction, announce, **long)
        announce("end")
    assert result.status in ("ok", "suspect"), result.message
    assert max(peaks["verify"], peaks["verify again"]) < most * 2048 * 64 * 16 * 2
