"""A worker is ended with everything that it started, its answers are data, and it loses no case but its own."""

import os
import time
from pathlib import Path

import pytest
import torch

from longca.manifests import Device, Problem
from longca.masks import build
from longca_bench.measuring.remote_kernel import RemoteKernel
from longca_bench.measuring.status import CaseEndError, Status
from longca_bench.measuring.worker import Workers
from longca_bench.verification.inputs import draw_inputs
from longca_builtin.naive import Naive

CPU = torch.device("cpu")
NAMES = ("daemon", "exhausted", "hangs", "liar", "raiser", "talker")
PLUGIN = f"""
@hookimpl
def provide_kernel():
    takes = offer("row_intervals", dtypes=("float32",), backward="external")
    return [kernel(name, takes, implementation=f"odd_kernels:{{name.title()}}") for name in {NAMES!r}]
"""
KERNELS = '''
import os, subprocess, time
import torch
from longca_builtin.naive import Naive

class Daemon(Naive):
    """Leaves a process in a session of its own."""
    def forward(self, *arguments, **buffers):
        subprocess.Popen(["sleep", os.environ["DAEMON_SECONDS"]], start_new_session=True)
        return super().forward(*arguments, **buffers)

class Exhausted(Naive):
    def forward(self, *arguments, **buffers):
        raise MemoryError("no memory is left")

class Hangs(Naive):
    def forward(self, *arguments, **buffers):
        subprocess.Popen(["sleep", os.environ["DAEMON_SECONDS"]])
        time.sleep(600)

class Liar(Naive):
    """Sends something else than an answer."""
    def forward(self, *arguments, **buffers):
        for fd in range(3, 1024):
            try:
                os.write(fd, (5).to_bytes(4, "big") + b"[1,2]")
            except OSError:
                pass
        return super().forward(*arguments, **buffers)

class Talker(Naive):
    """Prints megabytes, and ends its process."""
    def forward(self, *arguments, **buffers):
        print("x" * 2**22, flush=True)
        print("\\x1b[31mthe last words", flush=True)
        os._exit(3)

class Raiser(Naive):
    """Changes global state, and raises."""
    def forward(self, *arguments, **buffers):
        first = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        raise ValueError(f"found {first}")
'''
SECONDS = str(86400 + os.getpid())  # by which a daemon of this process is known
#: A distribution whose import changes global state.
IMPORTED = """
@hookimpl
def provide_kernel():
    return kernel("imported", offer("row_intervals", dtypes=("float32",)), implementation="imported_kernels:Naive")
"""
SETS_DTYPE = "import torch\nfrom longca_builtin.naive import Naive\ntorch.set_default_dtype(torch.float64)\n"
PROBLEM = Problem(mask=build("causal", 40), heads_q=4, heads_kv=2, head_dim=16, dtype="float32", device=Device("cpu"))


@pytest.fixture
def workers(fakes, monkeypatch):
    (fakes.add("odd", PLUGIN) / "odd_kernels.py").write_text(KERNELS)
    (fakes.add("imported", IMPORTED) / "imported_kernels.py").write_text(SETS_DTYPE)
    about = {"PYTHONPATH": os.pathsep.join(map(str, fakes.folders)), "OMP_NUM_THREADS": "1", "DAEMON_SECONDS": SECONDS}
    for name, value in {**fakes.env, **about}.items():
        monkeypatch.setenv(name, value)
    made = Workers(CPU)
    made.deadline = time.monotonic() + 120
    yield made
    made.close()
    assert not running()


def call(workers, name, distribution="odd"):
    kernel, x = RemoteKernel(workers, name, (distribution,)), draw_inputs(PROBLEM, 0)
    out, lse = kernel.forward(x.q, x.k, x.v, kernel.plan(PROBLEM))
    wanted = Naive().forward(x.q, x.k, x.v, Naive().plan(PROBLEM))
    assert torch.equal(out, wanted[0])
    assert torch.equal(lse, wanted[1])


def running():
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found += [process.name] if SECONDS.encode() in (process / "cmdline").read_bytes() else []
        except OSError:
            continue
    return found


def state_of(worker):
    return Path(f"/proc/{worker._process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_worker_ends_with_what_it_started_and_no_other_does(workers):
    call(workers, "naive", "longca-core")
    core, odd = workers.of(("longca-core",)), workers.of(("odd",))
    call(workers, "daemon")
    deadline = time.monotonic() + 30
    while not running() or state_of(core) != "T":
        assert time.monotonic() < deadline, "the other worker is stopped"
    odd.end()
    assert not running()
    age = core.age
    call(workers, "naive", "longca-core")
    assert (core.age, state_of(core) in "RS") == (age, True)


def test_a_worker_that_dies_or_says_no_answer_is_replaced(workers):
    for name, words in (("liar", "answer"), ("talker", "exited with code 3. Its last words: .*the last words")):
        with pytest.raises(CaseEndError, match=words) as end:
            call(workers, name)
        assert end.value.status is Status.CRASHED
        assert str(end.value).isprintable()
    call(workers, "daemon")
    began, workers.deadline = time.monotonic(), time.monotonic() + 5
    with pytest.raises(CaseEndError, match="no answer before its deadline") as end:
        call(workers, "hangs")
    assert end.value.status is Status.TIMEOUT
    assert 5 <= time.monotonic() - began < 20
    assert not running()


def test_a_worker_without_memory_or_with_a_changed_state_ends_with_its_case(workers):
    for _ in range(2):
        RemoteKernel(workers, "raiser", ("odd",)).load()
        with pytest.raises(CaseEndError, match=r"found torch\.float32"):
            call(workers, "raiser")
    with pytest.raises(CaseEndError, match="no memory is left") as end:
        call(workers, "exhausted")
    assert (end.value.status, workers.of(("odd",)).is_running) == (Status.OOM, False)


def test_a_state_that_an_import_changes_is_named(workers):
    with pytest.raises(CaseEndError, match="the import changes global state: default dtype") as end:
        call(workers, "imported", "imported")
    assert end.value.status is Status.WRONG


def test_a_worker_ends_with_the_process_that_started_it(fakes):
    code = """
import os, signal, torch
from longca_bench.measuring.worker import Workers
worker = Workers(torch.device("cpu")).of(("longca-core",))
worker.start()
print(worker._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    pid, deadline = int(fakes.python("-c", code).stdout), time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and b"worker_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.05)
