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
from pathlib import Path

import pytest
from importlib_metadata import version

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


def test_halves_are_verified_alone_and_together(halves):
    kernels = ("--kernel", "back", "--kernel", "ahead+back")
    ran = halves.longca("verify", *kernels, "--device", "cpu", "--json")
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
        assert [*each["sources"]] == ["longca-core"], "the distribution here that is installed editable"


GPU_ALONE = """
@hookimpl
def provide_kernel():
    return kernel("far", offer("causal", cpu=False, verified_on=">=8.0"), implementation="half_kernels:Forward")
"""


def test_nothing_verified_is_a_failure_with_its_reason(halves):
    halves.add("gpus", GPU_ALONE)
    said = "error: nothing of far was verified here: far runs on CUDA devices of compute capability >=8.0; this device"
    ran = halves.longca("verify", "--kernel", "far", "--device", "cpu", LONGCA_PLUGINS="halves,gpus")
    assert (ran.returncode, ran.stderr.count("\n")) == (1, 1)
    assert ran.stderr.startswith(said)
    beside = ("--kernel", "far", "--kernel", "back", "--device", "cpu")
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
    assert {failure["tensor"] for failure in row["failures"]} == {"dv"}


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
from longca_builtin.naive import Naive

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

def hang():
    open(os.environ.get("MARKER", os.devnull), "w").close()
    time.sleep(600)

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
    "hangs": hang,
    "no_memory": no_memory,
    "changes_dtype": lambda: torch.set_default_dtype(torch.float64),
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

class rare(Kernel):
    """Wrong in one call of 200 with a plan."""
    def forward(self, q, k, v, plan, **buffers):
        plan.calls = getattr(plan, "calls", 0) + 1
        out, lse = super().forward(q, k, v, plan, **buffers)
        return (out if plan.calls % 200 else out.mul_(1.01)), lse
'''
ENDING = """
@hookimpl
def provide_kernel():
    takes = offer("full", dtypes=("float32",), gqa=False, head_dims=(32,), backward="none")
    return [kernel(name, takes, implementation=f"ending_kernels:{name}") for name in NAMES]
"""
#: What `longca verify` says of each kernel: the status, and a part of the message.
SAYS = {
    "exits": ("crashed", "3:3 heads: the worker exited with code 0"),
    "leaves": ("error", "3:3 heads: SystemExit: 0"),
    "faults": ("crashed", "3:3 heads: the worker was ended by SIGSEGV"),
    "hangs": ("timeout", "3:3 heads: no answer within 8 s; it was ended"),
    "no_memory": ("oom", "3:3 heads: OutOfMemoryError: CUDA out of memory"),
    "nothing": ("wrong", "out: the kernel returned a NoneType instead of a tuple of out, lse"),
    "changes_dtype": ("wrong", "state: the kernel changes global state"),
    "no_plan": ("wrong", "3:3 heads: plan returned a int"),
    "rare": ("ok", ""),
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


def test_the_table_names_the_status(ending):
    named = ("--kernel", "exits", "--kernel", "right")
    ran = ending.longca("verify", *named, "--device", "cpu")
    assert (ran.returncode, ran.stderr) == (1, "")
    assert re.search(r"✗ CRASHED +full +float32 +forward", ran.stdout)
    assert "exits full float32 forward: crashed on one token, 3:3 heads: the worker exited with code 0" in ran.stdout
    assert re.search(r"✓ +full +float32 +forward", ran.stdout)


def test_a_kernel_that_is_wrong_in_one_call_of_200_is_found_with_how_often(ending):
    ran = ending.longca("verify", "--kernel", "rare", "--device", "cpu", "--repeat", "250", "--json")
    assert (ran.returncode, ran.stderr) == (1, "")
    (row,) = json.loads(ran.stdout)["rare"]["offers"]
    masks = len([mask for mask in row["masks"] if not mask.endswith(("outliers", "sinks"))])
    assert (row["calls"], row["wrong_calls"]) == (250 * masks, masks)
    labels = {failure["mask"].rpartition(", ")[2] for failure in row["failures"] if ", call " in failure["mask"]}
    assert labels == {"call 200"}


def interrupted(fakes, marker, *options, **env):
    """Starts `longca verify`, sends SIGINT once a file is there, and returns the output and the errors."""
    verifying = subprocess.Popen(
        [sys.executable, "-m", "longca", "verify", "--device", "cpu", *options],
        env={**fakes.env, "PYTHONPATH": os.pathsep.join(map(str, fakes.folders)), "OMP_NUM_THREADS": "1", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
    )
    _wait_until(marker.exists)
    os.killpg(verifying.pid, signal.SIGINT)
    out, err = verifying.communicate(timeout=60)
    assert verifying.returncode == 130
    assert "Traceback" not in err
    return out, err


def test_ctrl_c_ends_everything_without_a_traceback(ending, tmp_path):
    marker = tmp_path / "called"
    interrupted(ending, marker, "--kernel", "hangs", "--kernel", "right", MARKER=str(marker))


SLEEPS = """
import pathlib, time
from longca.masks import Form
from longca_builtin.naive import Naive

class Fast(Naive):
    def plan(self, problem):
        plan = super().plan(problem)
        plan.form = Form.ROW_INTERVALS
        return plan

class Sleeps(Fast):
    def plan(self, problem):
        if problem.direction == "backward":
            pathlib.Path({marker!r}).touch()
            time.sleep(600)
        return super().plan(problem)
"""


@pytest.mark.exhaustive
def test_ctrl_c_tells_what_was_verified_before(fakes, tmp_path):
    marker = tmp_path / "planning"
    takes = 'offer("row_intervals", backward="external", dtypes=("float32",), head_dims=(32,), gqa=False)'
    names = {"fast": "sleeps:Fast", "tired": "sleeps:Sleeps"}
    both = ", ".join(f'kernel("{name}", {takes}, implementation="{path}")' for name, path in names.items())
    fakes.add("tired", f"@hookimpl\ndef provide_kernel():\n    return [{both}]")
    (fakes.folders[-1] / "sleeps.py").write_text(SLEEPS.format(marker=str(marker)), "utf-8")
    out, _ = interrupted(fakes, marker, "--kernel", "fast", "--kernel", "tired", "--json", LONGCA_PLUGINS="tired")
    told = {name: each["offers"] for name, each in json.loads(out).items()}
    assert [row["direction"] for row in told["fast"]] == ["forward", "backward"]
    assert [row["direction"] for row in told["tired"]] == ["forward"]
    assert all(row["passed"] for rows in told.values() for row in rows)


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
