"""Judging: who lacks memory gets that of resting workers, and workers are told nothing of the run's folder."""

import json
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from longca.errors import RequestError
from longca_bench.measuring.case_end import CaseEndError
from longca_bench.measuring.judging import SHARE, _bound, _measured
from longca_bench.measuring.messages import Order
from longca_bench.measuring.status import Status

FULL = torch.OutOfMemoryError("CUDA out of memory")


def measured(*answers, ranks=1, keep_memory=False):
    """The result of a case that a bench answers in turn, and the mocks of the bench and of the workers."""
    bench, workers = Mock(), Mock(keep_memory=keep_memory)
    bench.measure.side_effect = answers
    instruments = SimpleNamespace(workers=workers, announce=Mock(last="references"), world=Mock(size=ranks))
    return _measured(Order(Mock(), None), bench, instruments), bench, workers


def test_a_judge_without_memory_ends_resting_workers_and_measures_once_more():
    result, bench, workers = measured(FULL, "right")
    assert (result, bench.measure.call_count) == ("right", 2)
    workers.end.assert_called_once_with()


@pytest.mark.parametrize("ranks", [1, 2])
def test_memory_of_the_judge_is_not_said_to_be_the_kernels(ranks):
    result, bench, _ = measured(FULL, FULL, ranks=ranks)
    assert (result.status, bench.measure.call_count) == (Status.OOM, 3 - ranks), "ranks measure together"
    assert result.message.startswith("the judge, which holds inputs and references, has no memory left")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_the_judges_own_memory_is_bounded():
    device = torch.device("cuda", torch.cuda.current_device())
    total = torch.cuda.get_device_properties(device).total_memory
    if torch.cuda.mem_get_info(device)[0] < (SHARE + 0.1) * total:
        pytest.skip("other processes hold the device's memory")
    try:
        _bound(device)
        with pytest.raises(torch.OutOfMemoryError, match=r"memory limit|allowed"):
            torch.empty(int((SHARE + 0.05) * total), dtype=torch.uint8, device=device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


NONE_LEFT = CaseEndError(Status.OOM, "the kernel has no memory left")


@pytest.mark.parametrize("how", [{}, {"keep_memory": True, "ranks": 2}])
def test_memory_of_a_kernel_is_the_kernels(how):
    result, bench, workers = measured(NONE_LEFT, **how)
    assert (result.status, result.message) == (Status.OOM, "the kernel has no memory left")
    assert bench.measure.call_count == 1
    workers.end.assert_not_called()


def test_a_kernel_without_memory_gets_that_of_resting_workers_and_is_measured_once_more():
    result, bench, workers = measured(NONE_LEFT, "right", keep_memory=True)
    assert (result, bench.measure.call_count) == ("right", 2)
    workers.end.assert_called_once_with()
    again, _, _ = measured(NONE_LEFT, NONE_LEFT, keep_memory=True)
    assert (again.status, again.message) == (Status.OOM, "the kernel has no memory left")


@pytest.mark.parametrize("error", [ValueError("odd"), CaseEndError(Status.WRONG, "wrong")])
def test_another_end_of_a_case_ends_no_resting_worker(error):
    result, bench, workers = measured(error, keep_memory=True)
    assert result.status in (Status.ERROR, Status.WRONG)
    assert bench.measure.call_count == 1
    workers.end.assert_not_called()


SPY = """
import os
from longca.masks import Form
from longca_builtin.naive import Naive

class Spy(Naive):
    def plan(self, problem):
        held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2
                and os.path.lexists(f"/proc/self/fd/{fd}")]
        told = {**os.environ, "working folder": os.getcwd(), "descriptors": str(held)}
        known = [name for name, value in told.items() if "secret" in value]
        assert not known, f"told by {known}"
        plan = super().plan(problem)
        plan.form = Form.ROW_INTERVALS  # of blocks too, as the offer says
        return plan

@hookimpl
def provide_kernel():
    takes = offer("row_intervals", dtypes=("float32",), backward="external")
    return [kernel("spy", takes, implementation="spy:Spy")]
"""


def told_of(run):
    """Variables that name a folder, as a shell, a scheduler and the user set them."""
    names = "PWD", "OLDPWD", "SLURM_SUBMIT_DIR", "PBS_O_WORKDIR", "LONGCA_HISTORY", "LONGCA_VERIFIED"
    return {name: str(run / name) if name.startswith("LONGCA") else str(run) for name in names}


#: One device, and two ranks.
ranks = pytest.mark.parametrize(
    "ranks", [(), pytest.param(("--strategy", "ulysses", "--nproc", "2"), marks=pytest.mark.exhaustive)]
)


@ranks
def test_a_worker_is_told_nothing_of_the_runs_folder(fakes, ranks):
    fakes.add("spy", SPY)
    run = fakes.root / "secret"
    run.mkdir()
    about = ("--seqlen", "64", "--heads", "4:2", "--head-dim", "16", "--dtype", "float32", "--direction", "forward")
    asked = ("run", "causal", "--kernel", "spy", "--device", "cpu", *about, *ranks, "--out", str(run / "here"))
    ran = fakes.longca(*asked, **told_of(run))
    (record,) = map(json.loads, (run / "here" / "records.jsonl").read_text().splitlines())
    assert record["status"] == "ok", (record["message"], ran.stderr)


@pytest.mark.exhaustive
def test_a_worker_of_verify_is_told_nothing_of_the_users_folders(fakes):
    fakes.add("spy", SPY)
    ran = fakes.longca("verify", "--kernel", "spy", "--device", "cpu", "--json", **told_of(fakes.root / "secret"))
    assert ran.returncode == 0, ran.stdout + ran.stderr


KNOWS = """
from dataclasses import replace
from longca_bench.verification.inputs import draw_inputs
from longca_builtin.naive import Naive

class {0}(Naive):
    is_planned = False

    def plan(self, problem):
        self.is_planned, self.known = True, draw_inputs(replace(problem, heads_q=4, heads_kv=2), 0)
        return super().plan(problem)

    def forward(self, q, k, v, plan, **buffers):
        if self.is_planned:
            same = [head for head in range(v.shape[1]) if any(v[:, head].equal(x) for x in self.known.v.unbind(1))]
            assert not same, f"values of heads {{same}} were known to the plan"
        self.is_planned = False
        return super().forward(q, k, v, plan, **buffers)
"""
PROVIDES_KNOWING = """
@hookimpl
def provide_kernel():
    takes = offer("row_intervals", dtypes=("float32",), backward="external")
    return [kernel(name.lower(), takes, implementation=f"known:{name}") for name in ("First", "Second")]
"""


@ranks
def test_no_plan_knows_the_inputs_of_the_call_that_follows(fakes, ranks):
    """Kernels of one mask share inputs, which a seed gives. The second plan comes after they were drawn."""
    (fakes.add("knowing", PROVIDES_KNOWING) / "known.py").write_text(
        "".join(map(KNOWS.format, ("First", "Second"))), "utf-8"
    )
    about = ("--seqlen", "64", "--heads", "4:2", "--head-dim", "16", "--dtype", "float32")
    kernels = ("--kernel", "first", "--kernel", "second", "--device", "cpu")
    ran = fakes.longca("run", "causal", *kernels, *about, *ranks, "--out", str(fakes.root / "here"))
    assert (fakes.root / "here").exists(), ran.stdout + ran.stderr
    records = [json.loads(line) for line in (fakes.root / "here" / "records.jsonl").read_text().splitlines()]
    assert [each["status"] for each in records] == ["ok"] * 4, ran.stdout + ran.stderr


def test_another_error_is_no_lack_of_memory():
    result, bench, _ = measured(ValueError("odd"))
    assert (result.status, result.is_judges, bench.measure.call_count) == (Status.ERROR, True, 1)
    assert result.message.endswith("references, failed in this case and was replaced: ValueError: odd")
    refused, _, _ = measured(RequestError("no mask"))
    assert (refused.status, refused.is_judges, refused.message) == (Status.ERROR, False, "RequestError: no mask")


#: A kernel that limits the descriptors of its judge, which is the parent of the keeper that forked its worker.
LIMITS = """
import os, resource
from pathlib import Path
from longca.masks import Form
from longca_builtin.naive import Naive

class Limits(Naive):
    def plan(self, problem):
        plan = super().plan(problem)
        plan.form = Form.ROW_INTERVALS
        return plan

    def forward(self, q, k, v, plan, **buffers):
        judge = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
        most = LIMIT
        resource.prlimit(judge, resource.RLIMIT_NOFILE, (most, most))
        return super().forward(q, k, v, plan, **buffers)

@hookimpl
def provide_kernel():
    takes = offer("row_intervals", dtypes=("float32",), backward="external")
    return [kernel("limits", takes, implementation="limits:Limits")]
"""


@pytest.mark.parametrize("limit", ["3", "1 + max(map(int, os.listdir(f'/proc/{judge}/fd')))"], ids=["none", "no more"])
def test_a_judge_that_fails_is_replaced_and_the_next_kernel_is_measured(fakes, limit):
    fakes.add("limits", LIMITS.replace("LIMIT", limit, 1))
    out = fakes.root / "here"
    about = ("--seqlen", "64", "--heads", "4:2", "--head-dim", "16", "--dtype", "float32", "--direction", "forward")
    kernels = ("--kernel", "naive", "--kernel", "limits", "--kernel", "sdpa", "--device", "cpu")
    ran = fakes.longca("run", "causal", *kernels, *about, "--out", str(out))
    found = {each["kernel"]: each for each in map(json.loads, (out / "records.jsonl").read_text().splitlines())}
    assert (found["naive"]["status"], found["sdpa"]["status"]) == ("ok", "ok"), ran.stderr
    assert "Traceback" not in ran.stderr
    assert found["limits"]["status"] in ("ok", "error")
    assert ("failed in this case" in found["limits"]["message"]) == (found["limits"]["status"] == "error")
