"""Runs with kernels that are wrong or deadly, and runs that are killed: each for real, through the command line."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest
import torch

from longca.testing import MISBEHAVING, misbehaving_plugins
from longca_bench.measuring.status import Status

from ...fake_plugins import provides

#: Seconds in which a part of the table must be through on a GPU.
GPU_SECONDS = 240

#: Kernels that are right, and take their time before each forward.
PROVIDES = """
@hookimpl
def provide_kernel():
    return kernel("{0}", offer("row_intervals", backward="external"), implementation="{0}_kernel:Late")
"""
LATE = """
import time
from longca_builtin.naive import Naive

class Late(Naive):
    calls = 0

    def forward(self, *arguments, **buffers):
        self.calls += 1
        {0}
        return super().forward(*arguments, **buffers)
"""
SLEEPS = "time.sleep(0.3)"


def provide(fakes, name, before):
    """Adds the distribution of a kernel that runs some code before each forward."""
    (fakes.add(name, PROVIDES.format(name)) / f"{name}_kernel.py").write_text(LATE.format(before), "utf-8")


@pytest.fixture
def faulty(fakes, tmp_path):
    """Distributions of misbehaving kernels and of a slow one, and how to run the quick suite with them."""
    provide(fakes, "slow", SLEEPS)
    fakes.folders.append(misbehaving_plugins(tmp_path / "misbehaving"))
    fakes.env |= {"LONGCA_HISTORY": str(tmp_path / "history.jsonl"), "OMP_NUM_THREADS": "1"}
    return fakes


def command(fakes, out, *options):
    arguments = [sys.executable, "-m", "longca", "run", "quick", "--seqlen", "80", "--mask", "causal"]
    environment = {**fakes.env, "PYTHONPATH": os.pathsep.join(map(str, fakes.folders))}
    return [*arguments, "--out", str(out), *options], environment


def start(fakes, out, *options):
    arguments, environment = command(fakes, out, *options)
    return subprocess.Popen(
        arguments,
        env=environment,
        cwd=fakes.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )


def heed_interrupts():
    """What a shell starts in the background ignores SIGINT, and so does all that is started by it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def records(out):
    return [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]


def wait_for_records(out, count):
    deadline = time.monotonic() + 600
    while not (out / "records.jsonl").exists() or len((out / "records.jsonl").read_bytes().splitlines()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def running(word, tmp_path):
    """Processes that a test started and that have a word in their command line; their environment names its folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line, environment = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
        except OSError:
            continue
        if word.encode() in line and str(tmp_path).encode() in environment:
            found.append(line)
    return found


def gone(word, tmp_path):
    deadline = time.monotonic() + 60
    while running(word, tmp_path):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def missed(faulty, tmp_path, kernels, *options, directions=("forward", "backward"), seconds=1200):
    """Runs kernels, and naive beside them. Lists the records that are missing or do not say what they must."""
    out, names = tmp_path / "run", [*(kernel.name for kernel in kernels), "naive"]
    process = start(faulty, out, *(option for name in names for option in ("--kernel", name)), *options)
    errors = errors_of(process, seconds)
    assert (out / "records.jsonl").exists(), errors
    found = {(record["kernel"], record["direction"]): record for record in records(out)}
    lacking = [case for case in product(names, directions) if case not in found]
    assert lacking or process.returncode == 1, errors
    assert "Traceback" not in errors
    assert not [r["message"] for r in found.values() if "ContractError" in r["message"]]
    assert len(found) <= len(directions) * len(names)
    assert all(r["advice"] for r in found.values() if r["status"] != "ok")
    assert all(r["median"] is None for r in found.values() if r["status"] not in ("ok", "suspect"))
    right = {k.name for k in kernels if k.direction == "backward" and k.says != "plan" and "forward" in directions}
    wanted = [(name, "forward") for name in right] + [("naive", direction) for direction in directions]
    hurt = [(*case, r["status"], r["message"]) for case in wanted if (r := found.get(case)) and r["status"] != "ok"]
    assert gone("longca_bench.measuring.worker_process", tmp_path)
    for direction in directions:
        assert len({work(record) for (_, which), record in found.items() if which == direction}) == 1
    mine = [(kernel, found.get((kernel.name, kernel.direction))) for kernel in kernels]
    odd = [
        (kernel.name, kernel.status, record["status"], record["message"])
        for kernel, record in mine
        if record and not kernel.holds(record["status"], record["message"], record["median"])
    ]
    return [*lacking, *hurt, *odd]


def errors_of(process, seconds):
    """The errors that a run printed. A run that takes longer is ended, and its records tell how far it came."""
    try:
        return process.communicate(timeout=seconds)[1]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=10)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[1]


def work(record):
    """What a record says of the work, which is the mask's and no kernel's."""
    return tuple(record[name] for name in ("area", "density", "tile_efficiency", "flops", "mask_digest"))


#: A plugin whose import, hooks and manifest change what counts as work. Its kernel is naive under another name.
CHANGES_WORK = """
from longca import Problem
from longca.masks import SliceMask

def enlarge():
    for owner, names in ((SliceMask, ("area", "density", "digest")), (Problem, ("area", "flops"))):
        for name in names:
            setattr(owner, name, property(lambda self: 10**15))

enlarge()

@hookimpl
def provide_kernel():
    enlarge()
    return kernel("enlarges", offer("row_intervals", backward="external"), implementation="longca_builtin.naive:Naive")

@hookimpl
def supports_mask(kernel, problem):
    enlarge()
    object.__setattr__(problem, "heads_q", 1024)
    object.__setattr__(problem, "head_dim", 2**16)
    problem.mask.__dict__.update(seqlen_q=1, area=10**15, digest="0" * 64)
"""


def test_hooks_that_change_the_work_change_no_record(fakes, tmp_path):
    fakes.add("enlarges", CHANGES_WORK)
    process = start(fakes, tmp_path / "run", "--kernel", "naive", "--kernel", "enlarges")
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    found = {(record["kernel"], record["direction"]): record for record in records(tmp_path / "run")}
    for direction in ("forward", "backward"):
        mine, honest = (found[name, direction] for name in ("enlarges", "naive"))
        assert work(mine) == work(honest)
        assert mine["tflops"] == pytest.approx(honest["flops"] / mine["median"] / 1e12)


def test_a_manifest_that_names_its_own_work_is_refused(fakes):
    fakes.add("counts", provides("counts", flops=10**15))
    (problem,) = fakes.plugins()["counts"]["problems"]
    assert "flops" in problem


#: Parts of the misbehaving kernels. Each has kernels of all kinds.
PARTS = 12


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_fault_is_named_and_the_next_case_is_unaffected(faulty, tmp_path, part):
    kernels = [k for k in MISBEHAVING if k.runs_on("cpu") and k.status is not Status.TIMEOUT][part::PARTS]
    assert missed(faulty, tmp_path, kernels, "--timeout", "60", "--memory", "12") == []
    assert gone("86396", tmp_path), "a stopped process lives on"
    assert gone("86397", tmp_path), "a process in a session of its own lives on"


#: Misbehaving kernels that end no check: `longca verify` goes through all of its problems with each.
VERIFIED = {
    "zeros", "cached_by_shape", "one_in_three", "every_second", "skips_last_row", "ignores_mask", "slightly_off",
    "in_bfloat16", "late_thread", "copies_reference", "patches_verification", "patches_equal", "lazy_tensor",
    "float64_out", "default_dtype", "changes_in_plan",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.sampled(PARTS)
@pytest.mark.parametrize("part", [*range(1, PARTS), 0])
def test_verify_takes_the_same_road(faulty, tmp_path, part):
    """What ends a case ends the check of an offer with the same status, and so does most of what is wrong."""
    there = [k for k in MISBEHAVING if k.runs_on("cpu") and k.status is not Status.TIMEOUT]
    kernels = [k for k in there if k.module in ("ends", "") or k.name in VERIFIED][part::PARTS]
    named = [option for name in (*(k.name for k in kernels), "naive") for option in ("--kernel", name)]
    ran = faulty.longca("verify", *named, "--device", "cpu", "--jobs", "2", "--timeout", "60", "--json")
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    found = json.loads(ran.stdout)
    odd = []
    for kernel in kernels:
        (row,) = (row for row in found[kernel.name]["offers"] if row["direction"] == kernel.direction)
        said = [row["error"] or "", *(f"{failure['tensor']}: {failure['note']}" for failure in row["failures"])]
        if not any(kernel.holds(row["status"], text) for text in said):
            odd.append((kernel.name, kernel.status, row["status"], said[:3]))
    assert odd == []
    assert all(row["passed"] for row in found["naive"]["offers"]), "what ran beside them"
    assert gone("longca_bench.measuring.worker_process", tmp_path)


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", [1, 0])
def test_what_does_not_end_is_ended(faulty, tmp_path, part):
    kernels = [k for k in MISBEHAVING if k.runs_on("cpu") and k.status is Status.TIMEOUT][part::2]
    assert missed(faulty, tmp_path, kernels, "--timeout", "6") == []
    assert gone("86398", tmp_path), "the deadlocked kernel's child lives on"


#: Ends when a file is there, or after a minute.
NEIGHBOUR = """
import os, sys, time
end = time.monotonic() + 60
while not os.path.exists(sys.argv[1]) and time.monotonic() < end:
    sum(range(10**6))
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_run_waits_for_a_busy_neighbour_and_says_so(faulty, tmp_path):
    """The neighbour goes on for some seconds after the kernel was called for the first time, to be verified."""
    called, stop = tmp_path / "called", tmp_path / "stop"
    provide(faulty, "marks", f"open({str(called)!r}, 'w').close()")
    neighbours = [
        subprocess.Popen([sys.executable, "-c", NEIGHBOUR, str(stop)]) for _ in range(len(os.sched_getaffinity(0)))
    ]
    options = ("--kernel", "marks", "--direction", "forward", "--wait-idle", "60")
    process = start(faulty, tmp_path / "run", *options)
    deadline = time.monotonic() + 300
    while not called.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(5.0)
    stop.touch()
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert all(neighbour.wait(60) == 0 for neighbour in neighbours)
    (record,) = records(tmp_path / "run")
    assert record["machine"]["waited"] > 1.0
    assert record["machine"]["measured"] >= 1
    assert f"1 case waited {record['machine']['waited']:.0f} s for a quiet machine" in output


@pytest.mark.slow
def test_killed_and_resumed(faulty, tmp_path):
    out = tmp_path / "run"
    options = ("--kernel", "naive", "--kernel", "slow", "--kernel", "sdpa")
    process = start(faulty, out, *options)
    wait_for_records(out, 2)
    assert running("longca_bench.measuring.worker_process", tmp_path)
    process.kill()
    process.communicate()
    assert gone("longca_bench.measuring.worker_process", tmp_path), "a worker outlived the run"
    with (out / "records.jsonl").open("a") as file:
        file.write('{"case": "torn')
    before = records_but_torn(out)
    process = start(faulty, out, *options, "--resume")
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert "torn" in errors
    after = records(out)
    assert after[: len(before)] == before
    cases = [record["case"] for record in after]
    assert len(cases) == len(set(cases)) == 6


def records_but_torn(out):
    return [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()[:-1]]


@pytest.mark.slow
def test_interrupted(faulty, tmp_path):
    out = tmp_path / "run"
    process = start(faulty, out, "--kernel", "naive", "--kernel", "hangs_in_plan")
    wait_for_records(out, 2)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert f"interrupted: 2 of 4 cases have records, in {out}. " in errors
    assert errors.endswith(f"--resume --out {out}\n")
    assert json.loads((out / "environment.json").read_text())["cases"] == 4
    assert [record["status"] for record in records(out)] == ["ok", "ok"]
    assert gone("longca_bench.measuring.worker_process", tmp_path)


@pytest.mark.slow
def test_a_full_disk(faulty, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small tmpfs cannot be mounted here")
    try:
        process = start(
            faulty, disk / "run", "--kernel", "naive", "--kernel", "sdpa", "--mask", "full", "--seqlen", "81"
        )
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 1
        assert "No space left" in errors
        assert "Traceback" not in errors
        assert all(record["status"] == "ok" for record in records(disk / "run"))
        assert gone("longca_bench.measuring.worker_process", tmp_path)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def interrupted_by(faulty, out, harm):
    """A run whose folder takes harm while it measures its third case: the records before, and the errors it says."""
    process = start(faulty, out, "--kernel", "naive", "--kernel", "slow")
    wait_for_records(out, 2)
    before = records(out)
    harm()
    _, errors = process.communicate(timeout=600)
    assert (process.returncode, len(before)) == (1, 2), errors
    assert [line for line in errors.splitlines() if line.startswith("error: ")] == errors.splitlines()[-1:]
    assert "Traceback" not in errors
    assert gone("longca_bench.measuring.worker_process", faulty.root)
    return before, errors


def resumed(faulty, out):
    """The records of a run that goes on."""
    process = start(faulty, out, "--kernel", "naive", "--kernel", "slow", "--resume")
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return records(out)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_disk_that_becomes_read_only(faulty, tmp_path):
    """A kernel of Linux does that to a disk that fails. A tmpfs with an open file cannot be mounted read-only."""
    disk = tmp_path / "disk"
    disk.mkdir()
    make = "truncate -s 8M image && mkfs.ext4 -q image && mount -o loop image disk"
    made = subprocess.run(["sh", "-c", make], cwd=tmp_path, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {made.stderr.strip()}")
    try:
        abort = ["mount", "-o", "remount,abort", str(disk)]
        before, errors = interrupted_by(faulty, disk / "run", lambda: subprocess.run(abort, check=True))
        assert f"cannot write to {disk / 'run' / 'records.jsonl'}: Read-only file system. " in errors
        assert "make room" not in errors
        assert records(disk / "run") == before
        shutil.copytree(disk / "run", tmp_path / "copy")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    after = resumed(faulty, tmp_path / "copy")
    assert (after[:2], len(after)) == (before, 4)


def finished(faulty, out):
    process = start(faulty, out, "--kernel", "naive")
    process.communicate(timeout=600)
    assert process.returncode == 0


@pytest.mark.exhaustive
@pytest.mark.slow
def test_what_is_not_resumed(faulty, tmp_path):
    out = tmp_path / "run"
    finished(faulty, out)
    whole = (out / "records.jsonl").read_text()

    def refusal(*options):
        process = start(faulty, out, "--kernel", "naive", *options)
        output, errors = process.communicate(timeout=600)
        assert process.returncode == 2, output + errors
        return errors

    assert "--resume" in refusal()
    (out / "records.jsonl").write_text(whole.replace('"status":"ok"', '"status":"fine"', 1))
    assert "line 1" in refusal("--resume")
    (out / "records.jsonl").write_text(whole)
    environment = json.loads((out / "environment.json").read_text())
    environment["device"]["name"] = "another machine"
    (out / "environment.json").write_text(json.dumps(environment))
    assert "another machine" in refusal("--resume")
    assert (out / "records.jsonl").read_text() == whole


@pytest.mark.exhaustive
@pytest.mark.slow
def test_fail_fast_skips_and_resume_runs_what_was_skipped(faulty, tmp_path):
    out = tmp_path / "run"
    process = start(faulty, out, "--kernel", "zeros", "--kernel", "slow", "--fail-fast")
    process.communicate(timeout=600)
    assert process.returncode == 1
    assert [(r["kernel"], r["status"]) for r in records(out)] == [
        ("zeros", "wrong"),
        ("zeros", "skipped"),
        ("slow", "skipped"),
        ("slow", "skipped"),
    ]
    process = start(faulty, out, "--kernel", "zeros", "--kernel", "slow", "--resume")
    process.communicate(timeout=600)
    assert process.returncode == 1, "zeros is still wrong"
    last = {(r["kernel"], r["direction"]): r["status"] for r in records(out)}
    assert last["slow", "forward"] == last["slow", "backward"] == "ok"
    assert len(records(out)) == 7


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_record_of_a_pair_names_both_distributions(faulty, tmp_path):
    process = start(faulty, tmp_path / "run", "--kernel", "slow+naive")
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, output + errors
    found = {(record["kernel"], record["direction"]): record for record in records(tmp_path / "run")}
    assert all(record["status"] == "ok" for record in found.values())
    assert found["slow+naive", "backward"]["distribution"] == "slow + longca-core"


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("direction", "modules"),
    [
        *(("forward", part) for part in (("cuda",), ("fast",), ("late", "sly"), ("odd",), ("state",), ("ends", ""))),
        ("backward", ("cuda", "fast", "late", "sly", "odd", "state", "ends")),
    ],
)
def test_faults_of_a_gpu(faulty, tmp_path, direction, modules):
    """A lost context is replaced, and memory that a kernel took is back, before the next case runs."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and torch sees none here")
    there = [k for k in MISBEHAVING if k.runs_on("cuda") and k.module in modules and k.direction == direction]
    kernels = [k for k in there if k.status is not Status.TIMEOUT or k.module == "cuda"]  # the others need no device
    options = ("--device", "cuda", "--direction", direction, "--timeout", "20")
    assert missed(faulty, tmp_path, kernels, *options, directions=(direction,), seconds=GPU_SECONDS) == []
