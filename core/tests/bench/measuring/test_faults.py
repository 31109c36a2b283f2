"""Runs with kernels that are wrong or deadly, and runs that are killed: each for real, through the command line."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

KERNELS = Path(__file__).with_name("faulty_kernels.py")

#: What each kernel's forward must be found to be, and a word of what must be said of it.
FAULTS = {
    "segfault": ("crashed", "SIGSEGV"),
    "exit": ("crashed", "exited with code 0"),
    "hang": ("timeout", "'plan'"),
    "deadlock": ("timeout", "'verify'"),
    "raises": ("error", "no kernel image"),
    "zeros": ("wrong", "out"),
    "writes_nan": ("wrong", "not every element is finite"),
    "unwritten": ("wrong", "not every element is finite"),
    "skips_last_tile": ("wrong", "another problem"),
    "wrong_dk": ("wrong", "dk"),
    "wrong_shape": ("wrong", "is the contract"),
    "wrong_dtype": ("wrong", "is the contract"),
    "alias": ("wrong", "q"),
    "changes_inputs": ("wrong", "changed this input"),
    "one_in_many": ("wrong", "of a timed call"),
    "takes_all_memory": ("oom", "memory"),
    "caches_by_pointer": ("wrong", "of a timed call"),
}
CLASSES = {name: "".join(part.title() for part in name.split("_")) for name in FAULTS}
CLASSES |= {"writes_nan": "WritesNaN", "slow": "Slow"}
CLASSES |= {"takes_all_gpu_memory": "TakesAllGpuMemory", "illegal_access": "IllegalAccess"}

PLUGIN = """
@hookimpl
def provide_kernel():
    takes = offer("row_intervals", dtypes=("float32",), backward="external", cuda=">=7.0")
    return [kernel(name, takes, implementation=where) for name, where in NAMES.items()]
"""


@pytest.fixture
def faulty(fakes, tmp_path):
    """A distribution of faulty kernels, and how to run the quick suite with it."""
    names = {name: f"faulty_kernels:{cls}" for name, cls in CLASSES.items()}
    folder = fakes.add("faulty", f"NAMES = {names!r}\n{PLUGIN}")
    (folder / "faulty_kernels.py").write_text(KERNELS.read_text("utf-8"), "utf-8")
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


@pytest.mark.slow
def test_every_fault_is_named_and_the_next_case_is_unaffected(faulty, tmp_path):
    out = tmp_path / "run"
    options = [option for name in [*FAULTS, "naive"] for option in ("--kernel", name)]
    process = start(faulty, out, *options, "--timeout", "15", "--memory", "12")
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 1, errors
    found = {(r["kernel"], r["direction"]): r for r in records(out)}
    assert len(found) == 2 * (len(FAULTS) + 1)
    for name, (status, word) in FAULTS.items():
        record = found[name, "backward" if name == "wrong_dk" else "forward"]
        assert (record["status"], word in record["message"]) == (status, True), (name, record["message"])
        assert record["advice"]
        assert record["median"] is None
    assert [found["naive", d]["status"] for d in ("forward", "backward")] == ["ok", "ok"]
    assert found["wrong_dk", "forward"]["status"] == "ok"
    assert gone("86399", tmp_path), "the deadlocked kernel's child lives on"
    assert gone("longca_bench.measuring.keeper", tmp_path)


@pytest.mark.slow
def test_killed_and_resumed(faulty, tmp_path):
    out = tmp_path / "run"
    options = ("--kernel", "naive", "--kernel", "slow", "--kernel", "sdpa")
    process = start(faulty, out, *options)
    wait_for_records(out, 2)
    assert running("longca_bench.measuring.keeper", tmp_path)
    process.kill()
    process.communicate()
    assert gone("longca_bench.measuring.keeper", tmp_path), "a worker outlived the run"
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
    process = start(faulty, out, "--kernel", "naive", "--kernel", "hang")
    wait_for_records(out, 2)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert f"interrupted: 2 of 4 cases have records, in {out}. " in errors
    assert errors.endswith(f"--resume --out {out}\n")
    assert [record["status"] for record in records(out)] == ["ok", "ok"]
    assert gone("longca_bench.measuring.keeper", tmp_path)


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
        assert gone("longca_bench.measuring.keeper", tmp_path)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def finished(faulty, out):
    process = start(faulty, out, "--kernel", "naive")
    process.communicate(timeout=600)
    assert process.returncode == 0


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


@pytest.mark.gpu
@pytest.mark.slow
def test_faults_of_a_gpu(faulty, tmp_path):
    """A poisoned context is replaced, and memory that a kernel took is back, before the next case runs."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and torch sees none here")
    out = tmp_path / "run"
    names = ("illegal_access", "takes_all_gpu_memory", "sdpa", "naive")
    process = start(faulty, out, *(option for name in names for option in ("--kernel", name)))
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 1, errors
    found = [(r["kernel"], r["status"]) for r in records(out)]
    assert [s for k, s in found if k in ("sdpa", "naive")] == ["ok"] * 4
    assert {s for k, s in found if k == "takes_all_gpu_memory"} == {"oom"}
    assert {s for k, s in found if k == "illegal_access"} <= {"error", "crashed"}
    assert all("illegal memory access" in r["message"] for r in records(out) if r["kernel"] == "illegal_access")
