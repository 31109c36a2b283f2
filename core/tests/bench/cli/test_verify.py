"""`longca verify`, as it is called: kernels, pairs, and offers that have a backward alone."""

import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest

from longca.testing import misbehaving_plugins

HALVES = """
from longca.kernels.base import Plan
from longca_builtin.naive import Naive
from longca.masks import Form

class Forward:
    forward = Naive.forward

    def plan(self, problem):
        return Plan(problem, Form.ROW_INTERVALS, "torch.matmul")

class Backward:
    plan, backward = Forward.plan, Naive.backward

class Overwrites(Backward):
    def backward(self, dout, q, *arguments, **buffers):
        results = super().backward(dout, q, *arguments, **buffers)
        q.zero_()
        return results

class Wrong(Backward):
    def backward(self, *arguments, **buffers):
        dq, dk, dv = super().backward(*arguments, **buffers)
        return dq, dk, dv.mul_(1.01)
"""
PROVIDES = """
@hookimpl
def provide_kernel():
    here = {"dtypes": ("float32",), "gqa": False, "head_dims": (32,), "unequal_lengths": True}
    back = offer("row_intervals", backward="external", forward=False, **here)
    return [kernel("ahead", offer("row_intervals", **here), implementation="half_kernels:Forward"),
            kernel("back", back, implementation="half_kernels:Backward"),
            kernel("overwrites", back, implementation="half_kernels:Overwrites"),
            kernel("wrong", back, implementation="half_kernels:Wrong")]
"""


@pytest.fixture
def halves(fakes):
    folder = fakes.add("halves", PROVIDES)
    (folder / "half_kernels.py").write_text(HALVES, "utf-8")
    fakes.env |= {"LONGCA_PLUGINS": "halves", "OMP_NUM_THREADS": "1"}
    return fakes


@pytest.mark.parametrize("jobs", [pytest.param("1", marks=pytest.mark.exhaustive), "2"])
def test_halves_are_verified_alone_and_together(halves, jobs):
    kernels = ("--kernel", "back", "--kernel", "ahead+back")
    ran = halves.longca("verify", *kernels, "--device", "cpu", "--jobs", jobs, "--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout)
    assert list(found) == ["back", "ahead+back"]
    for each in found.values():
        (row,) = each["offers"]
        assert row["passed"]
        assert (row["direction"], row["form"]) == ("backward", "row_intervals")
        assert row["offer"]["forward"] is False


def test_json_says_when_where_and_with_which_code(halves):
    asked = ("verify", "--kernel", "ahead", "--kernel", "ahead+back", "--device", "cpu", "--json")
    before = datetime.now(UTC).replace(microsecond=0)
    found = json.loads(halves.longca(*asked).stdout)
    for each in found.values():
        assert before <= datetime.fromisoformat(each["finished"]) <= datetime.now(UTC)
        assert each["device"]["kind"] == "cpu"
        known = {name: each["versions"][name] for name in ("python", "torch", "longca-core")}
        assert known == {
            "python": platform.python_version(), "torch": version("torch"), "longca-core": version("longca-core")
        }  # fmt: skip
        assert each["versions"]["halves"] == "1.0"
        assert [*each["sources"]] == ["half_kernels", "halves"]
        assert all(re.fullmatch("[0-9a-f]{32}", digest) for digest in each["sources"].values())


GPU_ALONE = """
@hookimpl
def provide_kernel():
    return kernel("far", offer("causal", cpu=False, verified_on=">=8.0"), implementation="half_kernels:Forward")
"""


@pytest.mark.parametrize("options", [(), pytest.param(("--json",), marks=pytest.mark.exhaustive)])
def test_nothing_verified_is_a_failure_with_its_reason(halves, options):
    halves.add("gpus", GPU_ALONE)
    said = "error: nothing of far was verified here: far runs on CUDA devices of compute capability >=8.0; this device"
    ran = halves.longca("verify", "--kernel", "far", "--device", "cpu", *options, LONGCA_PLUGINS="halves,gpus")
    assert (ran.returncode, ran.stderr.count("\n")) == (1, 1)
    assert ran.stderr.startswith(said)
    beside = ("--kernel", "far", "--kernel", "back", "--device", "cpu", *options)
    ran = halves.longca("verify", *beside, LONGCA_PLUGINS="halves,gpus")
    assert (ran.returncode, ran.stderr.startswith(said)) == (1, True), (
        "a kernel that was named is not skipped in silence"
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kernel", ["wrong", "ahead+wrong"])
def test_a_wrong_backward_is_found_whoever_computes_the_forward(halves, kernel):
    ran = halves.longca("verify", "--kernel", kernel, "--device", "cpu", "--json")
    assert ran.returncode == 1
    (row,) = json.loads(ran.stdout)[kernel]["offers"]
    assert {failure["tensor"] for failure in row["failures"]} == {"dv", "dv as a part"}


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ("back+bak", "unknown backward half 'bak'. Did you mean back?"),
        ("back+back", "pairs a kernel with itself; name it once: back"),
        ("a+b+c", "is no pair; name two kernels"),
    ],
)
def test_names_that_are_refused(halves, kernel, said):
    assert said in halves.refuses("verify", "--kernel", kernel, "--device", "cpu")


def test_a_backward_alone_says_what_to_do(halves):
    narrow = ("--mask", "full", "--seqlen", "64", "--direction", "backward", "--dry-run")
    ran = halves.longca("run", "quick", "--kernel", "back", *narrow)
    assert ran.returncode == 0
    assert "Pair it with a kernel that has one: FORWARD+back" in ran.stdout


ENDS = '''
import ctypes, os, sys, time, torch
from longca.masks import Form
from longca_bench.conformance.misbehaving.ends import cut_shared_memory, send_half_an_answer
from longca_builtin.naive import Naive

class Odd(BaseException):
    def __str__(self):
        raise self

class Kernel(Naive):
    def plan(self, problem):
        plan = super().plan(problem)
        plan.form = Form.FULL
        return plan

    def spoil(self):
        """Does what it should not."""

    def forward(self, *arguments, **buffers):
        self.spoil()
        return super().forward(*arguments, **buffers)

def odd():
    raise Odd

def no_memory():
    raise torch.OutOfMemoryError("CUDA out of memory")

def daemon():
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)

SPOILS = {
    "daemon": daemon,
    "exits": lambda: os._exit(0),
    "leaves": lambda: sys.exit(0),
    "faults": lambda: ctypes.string_at(0),
    "hangs": lambda: time.sleep(600),
    "cuts": cut_shared_memory,
    "half": send_half_an_answer,
    "odd": odd,
    "no_memory": no_memory,
    "state": lambda: torch.set_default_dtype(torch.float64),
}
for name, spoil in SPOILS.items():
    globals()[name] = type(name, (Kernel,), {"spoil": staticmethod(spoil)})

class right(Kernel):
    """Right."""

class nothing(Kernel):
    def forward(self, *arguments, **buffers):
        return None

class no_plan(Kernel):
    def plan(self, problem):
        return 7

class seventh(Kernel):
    """Wrong in the seventh call with a plan, and in every 14th, 21st, ..."""
    def forward(self, q, k, v, plan, **buffers):
        plan.calls = getattr(plan, "calls", 0) + 1
        out, lse = super().forward(q, k, v, plan, **buffers)
        return (out if plan.calls % 7 else out.mul_(1.01)), lse

class behind(Kernel):
    """Returns the answer of the call before, unless it is given buffers."""
    def forward(self, q, k, v, plan, **buffers):
        now = super().forward(q, k, v, plan, **buffers)
        if buffers:
            return now
        last, plan.last = getattr(plan, "last", now), tuple(x.clone() for x in now)
        return last
'''
ENDING = """
@hookimpl
def provide_kernel():
    takes = offer("full", dtypes=("float32",), gqa=False, head_dims=(32,), backward="none")
    return [kernel(name, takes, implementation=f"ending_kernels:{name}") for name in NAMES]
"""
#: What `longca verify` says of each kernel: the status, and a part of the message.
SAYS = {
    "exits": ("crashed", "full, 3:3 heads: the worker exited with code 0"),
    "leaves": ("error", "full, 3:3 heads: SystemExit: 0"),
    "faults": ("crashed", "full, 3:3 heads: the worker was ended by SIGSEGV"),
    "hangs": ("timeout", "full, 3:3 heads: no answer within 8 s; it was ended"),
    "cuts": ("error", "full, 3:3 heads: PermissionError: "),
    "half": ("timeout", "full, 3:3 heads: no answer within 8 s; it was ended"),
    "odd": ("error", "full, 3:3 heads: Odd: "),
    "no_memory": ("oom", "full, 3:3 heads: OutOfMemoryError: CUDA out of memory"),
    "state": ("wrong", "state: the kernel changes global state: default dtype"),
    "nothing": ("wrong", "out: the kernel returned a NoneType instead of a tuple of out, lse"),
    "no_plan": ("wrong", "full, 3:3 heads: plan returned a int"),
    "seventh": ("ok", ""),
    "behind": ("ok", ""),
    "daemon": ("ok", ""),
    "right": ("ok", ""),
}


@pytest.fixture
def ending(fakes):
    folder = fakes.add("ending", ENDING.replace("NAMES", repr(tuple(SAYS))))
    (folder / "ending_kernels.py").write_text(ENDS, "utf-8")
    fakes.env |= {"LONGCA_PLUGINS": "ending", "OMP_NUM_THREADS": "1"}
    yield fakes
    _wait_until(lambda: not _processes(fakes))


def _processes(fakes):
    """The command lines of what the test's commands have started. They have the folder in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and bytes(fakes.root) in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().decode())
    return found


def _wait_until(true, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_whatever_a_kernel_does_is_named_and_the_next_one_is_verified(ending):
    named = [word for name in SAYS for word in ("--kernel", name)]
    ran = ending.longca("verify", *named, "--device", "cpu", "--timeout", "8", "--json")
    assert (ran.returncode, ran.stderr) == (1, "")
    found = {name: each["offers"][0] for name, each in json.loads(ran.stdout).items()}
    assert {name: row["status"] for name, row in found.items()} == {name: status for name, (status, _) in SAYS.items()}
    for name, (status, part) in SAYS.items():
        said = [found[name]["error"] or "", *map(_text, found[name]["failures"])]
        assert any(part in text for text in said), (name, said)
        assert found[name]["passed"] is (status == "ok")


def _text(failure):
    return f"{failure['tensor']}: {failure['note'] or 'error'}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_the_table_names_the_status(ending, jobs):
    named = ("--kernel", "exits", "--kernel", "right")
    ran = ending.longca("verify", *named, "--device", "cpu", "--jobs", jobs)
    assert (ran.returncode, ran.stderr) == (1, "")
    assert re.search(r"✗ CRASHED +full +float32 +forward", ran.stdout)
    assert "exits full float32 forward: crashed on full, 3:3 heads: the worker exited with code 0" in ran.stdout
    assert re.search(r"✓ +full +float32 +forward", ran.stdout)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kernel", "wrong", "first"),
    [
        ("right", 0, None),
        ("seventh", 1, "call 7"),
        pytest.param("behind", 9, "call 2", marks=pytest.mark.exhaustive),
    ],
)
def test_a_kernel_that_is_wrong_now_and_then_is_found_with_how_often(ending, kernel, wrong, first):
    asked = ("verify", "--kernel", kernel, "--device", "cpu", "--repeat", "10")
    ran = ending.longca(*asked, "--json")
    assert (ran.returncode, ran.stderr) == (int(wrong > 0), "")
    (row,) = json.loads(ran.stdout)[kernel]["offers"]
    masks = len([mask for mask in row["masks"] if not mask.endswith("outliers")])
    assert (row["calls"], row["wrong_calls"]) == (10 * masks, wrong * masks)
    assert 0 < row["seconds"] < 600
    labels = {failure["mask"].rpartition(", ")[2] for failure in row["failures"] if ", call " in failure["mask"]}
    assert labels == ({first} if first else set())
    if wrong:
        said = f"{kernel} full float32 forward was wrong in {wrong * masks} of {10 * masks} calls"
        assert said in " ".join(ending.longca(*asked).stdout.split())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_ends_everything_without_a_traceback(ending, jobs):
    asked = ("verify", "--kernel", "hangs", "--kernel", "right", "--device", "cpu", "--jobs", jobs)
    env = {**ending.env, "PYTHONPATH": os.pathsep.join(map(str, ending.folders))}
    verifying = subprocess.Popen(
        [sys.executable, "-m", "longca", *asked],
        env=env,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
    )
    _wait_until(lambda: sum("measuring.worker_process" in line for line in _processes(ending)) == int(jobs))
    os.killpg(verifying.pid, signal.SIGINT)
    assert b"Traceback" not in verifying.communicate(timeout=60)[1]
    assert verifying.returncode == 130


SLEEPS = """
import pathlib, time
from longca_bench.conformance.misbehaving.honest import Honest

class Sleeps(Honest):
    def plan(self, problem):
        if problem.direction == "backward":
            pathlib.Path({marker!r}).touch()
            time.sleep(600)
        return super().plan(problem)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", [("--json",), ()], ids=["json", "text"])
def test_ctrl_c_tells_what_was_verified_before(fakes, tmp_path, form):
    marker = tmp_path / "planning"
    takes = 'offer("row_intervals", backward="external", dtypes=("float32",), head_dims=(32,), gqa=False)'
    names = {"fast": "longca_bench.conformance.misbehaving.honest:Honest", "tired": "sleeps:Sleeps"}
    both = ", ".join(f'kernel("{name}", {takes}, implementation="{path}")' for name, path in names.items())
    fakes.add("tired", f"@hookimpl\ndef provide_kernel():\n    return [{both}]")
    (fakes.folders[-1] / "sleeps.py").write_text(SLEEPS.format(marker=str(marker)), "utf-8")
    env = {**fakes.env, "PYTHONPATH": os.pathsep.join(map(str, fakes.folders)), "LONGCA_PLUGINS": "tired"}
    asked = ("verify", "--kernel", "fast", "--kernel", "tired", "--device", "cpu", *form)
    verifying = subprocess.Popen(
        [sys.executable, "-m", "longca", *asked],
        env={**env, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    _wait_until(marker.exists)
    os.killpg(verifying.pid, signal.SIGINT)
    out, err = verifying.communicate(timeout=60)
    assert verifying.returncode == 130
    if not form:
        rows = [line.split()[3] for line in out.splitlines() if line.strip().startswith("✓ ")]
        assert rows == ["forward", "backward", "forward"]
        assert "tired: interrupted before 1 of its 2 rows" in err
        assert "fast: interrupted" not in err
        return
    told = {name: each["offers"] for name, each in json.loads(out).items()}
    assert list(told) == ["fast", "tired"]
    assert [row["direction"] for row in told["fast"]] == ["forward", "backward"]
    assert [row["direction"] for row in told["tired"]] == ["forward"]
    assert all(row["passed"] for rows in told.values() for row in rows)


#: Says which kernel attention takes, and whether its results are right. A line of history says that zeros is fast.
TAKES = """
import torch
import longca
from longca import masks, plugins
from longca.manifests import Problem
from longca.manifests.devices import cpu_device
from longca.masks import Form
from longca_advice.auto_kernel import choose
from longca_advice.devices import evidence_name
from longca_advice.evidence import Row, Run
from longca_advice.history import append
from longca_advice.work import work_of

mask = masks.build("causal", 64)
q, k, v = torch.randn(3, 64, 2, 32).unbind()
about = dict(heads_q=2, heads_kv=2, head_dim=32, dtype="float32")
append(Row(
    kernel="zeros", direction="forward", seconds=1e-6, seqlen=64, density=mask.density, pattern="causal", case="forged",
    mask=mask.digest, work=tuple(vars(work_of(mask, Form.ROW_INTERVALS)).values()), **about,
    version="longca-misbehaving-fast 1.0", run=Run(run="this machine", device=evidence_name(cpu_device())),
))
print(choose(Problem(mask=mask, device=cpu_device(), **about), plugins.registry()).kernel, end=" ")
print(torch.allclose(longca.attention(q, k, v, mask), longca.attention(q, k, v, mask, kernel="naive"), atol=1e-5))
"""


def test_a_kernel_that_is_wrong_is_not_taken_whatever_the_history_says(fakes, tmp_path):
    fakes.folders.append(misbehaving_plugins(tmp_path / "misbehaving"))

    def takes():
        ran = fakes.python("-c", TAKES, OMP_NUM_THREADS="1")
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.split()

    assert takes() == ["zeros", "False"], "nobody has verified it here, and its history says that it is fast"
    ran = fakes.longca("verify", "--kernel", "zeros", "--device", "cpu", OMP_NUM_THREADS="1")
    assert ran.returncode == 1
    assert "zeros: kernel='auto' passes over this version of it on this machine" in ran.stderr
    kernel, is_right = takes()
    assert (kernel != "zeros", is_right) == (True, "True")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("asked", "doubted"),
    [("ahead+wrong", ["wrong"]), ("wrong", ["wrong"]), ("overwrites", ["overwrites"]), ("ahead+overwrites", [])],
)
def test_of_a_pair_the_kernel_that_is_wrong_is_doubted(halves, asked, doubted):
    """A backward that has no forward is checked behind that of naive. Either half may have changed an input."""
    ran = halves.longca("verify", "--kernel", asked, "--device", "cpu")
    assert ran.returncode == 1
    history = Path(halves.env["LONGCA_HISTORY"])
    found = [json.loads(line) for line in history.read_text().splitlines()] if history.exists() else []
    assert [(each["status"], each["kernel"], each["version"]) for each in found] == [
        ("wrong", name, "halves 1.0") for name in doubted
    ]
    assert all(each["case"].startswith("`longca verify`: row_intervals float32 backward: wrong on ") for each in found)


@pytest.mark.exhaustive
def test_a_finding_that_cannot_be_kept_is_told(halves):
    (halves.root / "file").write_text("")
    path = halves.root / "file" / "history.jsonl"
    ran = halves.longca("verify", "--kernel", "wrong", "--device", "cpu", "--json", LONGCA_HISTORY=str(path))
    assert ran.returncode == 1
    assert ran.stderr.startswith(
        f"wrong is wrong, and this cannot be kept in {path}, so kernel='auto' may still take it."
    )
