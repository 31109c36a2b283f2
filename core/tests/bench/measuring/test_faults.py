"""Runs with kernels that are wrong or deadly, and runs that are killed: each for real, through the command line."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path

import pytest

from ..misbehaving import misbehaving_plugins

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
    fakes.env |= {"OMP_NUM_THREADS": "1"}
    return fakes


def command(fakes, out, *options, suite="quick"):
    arguments = [sys.executable, "-m", "longca", "run", str(suite), "--seqlen", "80", "--mask", "causal"]
    environment = {**fakes.env, "PYTHONPATH": os.pathsep.join(map(str, fakes.folders))}
    return [*arguments, "--out", str(out), *options], environment


def start(fakes, out, *options, suite="quick"):
    arguments, environment = command(fakes, out, *options, suite=suite)
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
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(faulty, tmp_path, number):
    out = tmp_path / "run"
    process = start(faulty, out, "--kernel", "naive", "--kernel", "hangs")
    wait_for_records(out, 2)
    time.sleep(0.5)
    process.send_signal(number)
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


@pytest.mark.exhaustive
@pytest.mark.slow
def test_fail_fast_skips_and_resume_runs_what_was_skipped(faulty, tmp_path):
    out, suite = tmp_path / "run", tmp_path / "quick.toml"
    text = resources.files("longca_bench.suites").joinpath("quick.toml").read_text("utf-8")
    suite.write_text(text.replace("version = 1", "version = 1\nfail_fast = true"), "utf-8")
    process = start(faulty, out, "--kernel", "zeros", "--kernel", "slow", suite=suite)
    process.communicate(timeout=600)
    assert process.returncode == 1
    assert [(r["kernel"], r["status"]) for r in records(out)] == [
        ("zeros", "wrong"),
        ("zeros", "skipped"),
        ("slow", "skipped"),
        ("slow", "skipped"),
    ]
    suite.write_text(text, "utf-8")
    process = start(faulty, out, "--kernel", "zeros", "--kernel", "slow", "--resume", suite=suite)
    process.communicate(timeout=600)
    assert process.returncode == 1, "zeros is still wrong"
    last = {(r["kernel"], r["direction"]): r["status"] for r in records(out)}
    assert last["slow", "forward"] == last["slow", "backward"] == "ok"
    assert len(records(out)) == 7


@pytest.mark.slow
def test_full_standard_streams_end_no_run(faulty, tmp_path):
    for name, streams, code in (("errors", {"stderr": "full"}, 0), ("output", {"stdout": "full"}, 1)):
        arguments, environment = command(faulty, tmp_path / name, "--kernel", "naive", "--direction", "forward")
        with open("/dev/full", "w") as full:
            where = dict.fromkeys(streams, full)
            ran = subprocess.run(
                arguments, env=environment, cwd=faulty.root, **{"stdout": -3, "stderr": -3, **where}, check=False
            )
        assert (ran.returncode, len(records(tmp_path / name))) == (code, 1)
