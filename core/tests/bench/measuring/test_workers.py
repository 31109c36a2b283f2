"""Workers are ended with everything that they started, answers are data, and a lost keeper is replaced."""

import os
import shutil
import signal
import time
import weakref
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from longca.manifests import Device, Problem
from longca.masks import build
from longca.parallel.pushes import tell_window, window_bytes
from longca_bench.measuring import worker
from longca_bench.measuring.case_end import CaseEndError
from longca_bench.measuring.cgroup import can_join, own_cgroup
from longca_bench.measuring.commands import Load, WorkerSetup
from longca_bench.measuring.keeper import _new_folder
from longca_bench.measuring.keeping import Keeper
from longca_bench.measuring.remote_kernel import RemoteKernel
from longca_bench.measuring.remote_worker import RemoteWorker
from longca_bench.measuring.results import ContractError
from longca_bench.measuring.status import Status
from longca_bench.measuring.workers import Workers
from longca_bench.verification.inputs import draw_inputs
from longca_builtin.naive import Naive

CPU = torch.device("cpu")
NEEDS_CGROUP = pytest.mark.skipif(not can_join(), reason="this user can make no cgroup v2 here")
PLUGIN = """
@hookimpl
def provide_kernel():
    takes = offer("row_intervals", dtypes=("float32",), backward="external")
    return [kernel(name, takes, implementation=f"odd_kernels:{name.title()}") for name in NAMES]
"""
KERNELS = '''
import gc, os, signal, socket, subprocess, sys, time, warnings
import torch
from longca_bench.measuring.commands import Answer
from longca_builtin.naive import Naive

class Exhausted(Naive):
    """Finds no memory."""
    def forward(self, *arguments, **buffers):
        raise MemoryError("no memory is left")

class Daemon(Naive):
    """Leaves a process in a session of its own that forgets its parent."""
    def forward(self, *arguments, **buffers):
        if os.fork() == 0:
            os.setsid()
            seconds = os.environ["DAEMON_SECONDS"]
            os.environb.clear()
            if os.fork() == 0:
                os.execv("/bin/sleep", ["sleep", seconds])
            os._exit(0)
        return super().forward(*arguments, **buffers)

class Runner(Naive):
    """Leaves a process that forks and ends again and again, each faster than it is found."""
    def forward(self, *arguments, **buffers):
        if os.fork() == 0:
            os.setpgid(0, 0)
            while True:
                with open(os.environ["RUNS"], "a") as file:
                    file.write(".")
                if os.fork() != 0:
                    os._exit(0)
        return super().forward(*arguments, **buffers)

class Escaper(Naive):
    """As the runner does, for a minute, and each process takes a session of its own."""
    def forward(self, *arguments, **buffers):
        end = time.monotonic() + 60
        if os.fork() == 0:
            while time.monotonic() < end:
                os.setsid()
                with open(os.environ["RUNS"], "a") as file:
                    file.write(".")
                if os.fork() != 0:
                    os._exit(0)
        return super().forward(*arguments, **buffers)

class Stopper(Naive):
    """Stops the process that watches over it, and leaves a daemon."""
    def forward(self, *arguments, **buffers):
        os.kill(os.getppid(), signal.SIGSTOP)
        subprocess.Popen(["sleep", os.environ["DAEMON_SECONDS"]], start_new_session=True)
        return super().forward(*arguments, **buffers)

class Killer(Naive):
    """Ends the process that watches over it."""
    def forward(self, *arguments, **buffers):
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)

class Liar(Naive):
    """Sends something else than an answer, or too much."""
    def forward(self, *arguments, **buffers):
        for fd in range(3, 64):
            try:
                os.write(fd, (5).to_bytes(4, "big") + b"[1,2]")
            except OSError:
                pass
        return super().forward(*arguments, **buffers)

class Flooder(Naive):
    def forward(self, *arguments, **buffers):
        for fd in range(3, 64):
            try:
                os.write(fd, (2**31 - 1).to_bytes(4, "big"))
            except OSError:
                pass
        return super().forward(*arguments, **buffers)

class Parent(Naive):
    """Sleeps while processes below its own compute for 0.4 s: a child, and one that lost its parent."""
    def forward(self, *arguments, **buffers):
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            if os.fork() == 0:
                compute(0.2)
                os.write(write, b"x")
                time.sleep(600)
            os._exit(compute(0.2) or 0)
        os.close(write)
        os.waitpid(child, 0)
        os.read(read, 1)
        return super().forward(*arguments, **buffers)

def compute(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

class Half(Naive):
    """Sends the beginning of an answer, and then hangs."""
    def forward(self, *arguments, **buffers):
        os.write(worker()._connection.fileno(), (256).to_bytes(4, "big") + b"{")
        time.sleep(600)

class Torn(Naive):
    """Sends the beginning of an answer, and ends its process."""
    def forward(self, *arguments, **buffers):
        os.write(worker()._connection.fileno(), (256).to_bytes(4, "big") + b"{")
        os._exit(0)

class Repeater(Naive):
    """Says again and again that its call has ended."""
    def forward(self, *arguments, **buffers):
        while True:
            worker().say(Answer(said="ended"))

def worker():
    return next(found for found in gc.get_objects() if type(found).__name__ == "Worker")

class Talker(Naive):
    def forward(self, *arguments, **buffers):
        print("\\x1b[31mthe last \\ud800words" .encode("utf-8", "surrogatepass"), flush=True)
        os._exit(0)

class Raiser(Naive):
    """Changes global state, and raises."""
    def forward(self, *arguments, **buffers):
        first = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        raise ValueError(f"found {first}")

class Setter(Naive):
    """Sets up what libraries set up when they are imported and compile, and raises if it was not put back."""
    def plan(self, problem):
        self.set_up("PLANNED")
        return super().plan(problem)
    def forward(self, *arguments, **buffers):
        self.set_up("COMPILED")
        return super().forward(*arguments, **buffers)
    def set_up(self, variable):
        if os.environ.get("PLANNED") or os.environ.get("COMPILED") or "HOME" not in os.environ:
            raise ValueError("the environment was not put back")
        if sys.getrecursionlimit() == 5000 or any(f[1] and f[1].match("longca setter") for f in warnings.filters):
            raise ValueError("the limit of recursion or a filter was not put back")
        os.environ[variable] = "1"
        del os.environ["HOME"]
        sys.setrecursionlimit(5000)
        warnings.filterwarnings("ignore", message="longca setter")
'''
SECONDS = str(86400 + os.getpid())  # by which a daemon of this process is known
NAMES = (
    *("daemon", "runner", "escaper", "stopper", "liar", "flooder", "parent", "half", "torn", "repeater"),
    *("talker", "raiser", "killer", "setter", "exhausted"),
)


#: Distributions whose import changes global state: that of their kernel, and that of their plugin.
IMPORTED = """
@hookimpl
def provide_kernel():
    return kernel("{0}", offer("row_intervals", dtypes=("float32",)), implementation="{0}_kernels:Right")
"""
RIGHT = """
import os, torch
from longca_builtin.naive import Naive as Right
{0}
"""
SETS_DTYPE = "import torch\ntorch.set_default_dtype(torch.float64)\n"
SETS_UP = "os.environ['LIBRARY_SET_UP'] = '1'\nos.sys.path.append('/opt/kernels')\n"


@pytest.fixture
def keeper(fakes):
    folder = fakes.add("odd", f"NAMES = {NAMES!r}\n{PLUGIN}")
    (folder / "odd_kernels.py").write_text(KERNELS)
    for name, of_plugin, of_kernel in (
        ("by_kernel", "", SETS_DTYPE),
        ("by_plugin", SETS_DTYPE, ""),
        ("raising", "", f"first = torch.get_default_dtype()\n{SETS_DTYPE}raise ValueError(f'found {{first}}')"),
        ("set_up", SETS_UP.replace("os.", "__import__('os')."), SETS_UP),
    ):
        folder = fakes.add(name, IMPORTED.format(name) + of_plugin)
        (folder / f"{name}_kernels.py").write_text(RIGHT.format(of_kernel))
    environment = {**fakes.env, "OMP_NUM_THREADS": "1", "DAEMON_SECONDS": SECONDS, "RUNS": str(fakes.root / "runs")}
    kept = Keeper({**environment, "PYTHONPATH": os.pathsep.join(map(str, fakes.folders))})
    yield kept
    kept.close()
    assert not running(SECONDS)


@pytest.fixture
def workers(keeper):
    made = Workers(keeper, CPU)
    made.deadline = time.monotonic() + 120
    return made


PROBLEM = Problem(mask=build("causal", 40), heads_q=4, heads_kv=2, head_dim=16, dtype="float32", device=Device("cpu"))


def call(workers, name, distribution="odd"):
    kernel, x = RemoteKernel(workers, name, (distribution,)), draw_inputs(PROBLEM, 0)
    out, lse = kernel.forward(x.q, x.k, x.v, kernel.plan(PROBLEM))
    wanted = Naive().forward(x.q, x.k, x.v, Naive().plan(PROBLEM))
    assert torch.equal(out, wanted[0])
    assert torch.equal(lse, wanted[1])


def running(words):
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found += [process.name] if words.encode() in (process / "cmdline").read_bytes() else []
        except OSError:
            continue
    return found


def until_running(words):
    deadline = time.monotonic() + 30
    while not running(words):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_daemon_ends_with_its_worker_and_no_other_does(workers):
    call(workers, "naive", "longca-core")
    call(workers, "daemon")
    until_running(SECONDS)
    workers.of(("odd",), "daemon").end()
    assert not running(SECONDS)
    call(workers, "naive", "longca-core")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("is_lost", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", ["runner", pytest.param("escaper", marks=NEEDS_CGROUP)])
def test_a_process_that_forks_faster_than_it_is_found_ends_with_its_worker(workers, fakes, name, is_lost):
    call(workers, name)
    runs, deadline = fakes.root / "runs", time.monotonic() + 30
    while not runs.exists() or runs.stat().st_size < 20:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    workers.of(("odd",), name).end(is_lost=is_lost)
    size = runs.stat().st_size
    time.sleep(0.3)
    assert runs.stat().st_size == size


@NEEDS_CGROUP
def test_each_worker_has_a_cgroup_until_it_ends(workers, keeper):
    call(workers, "naive", "longca-core")
    call(workers, "daemon")
    until_running(SECONDS)
    owner = f"longca-{os.getpid()}-{keeper._process.pid}"
    groups = list(own_cgroup().glob(f"{owner}-*"))
    pids = [set((group / "cgroup.procs").read_text().split()) for group in groups]
    assert len(groups) == 2
    assert [group.name.rpartition("-")[2] in inside for group, inside in zip(groups, pids, strict=True)] == [True] * 2
    assert set(running(SECONDS)) < set.union(*pids)
    workers.of(("odd",), "daemon").end()
    assert [group.exists() for group in groups].count(True) == 1
    keeper.close()
    assert not any(group.exists() for group in groups)


@pytest.mark.exhaustive
def test_a_stopped_keeper_is_replaced_and_nothing_is_left(workers):
    call(workers, "stopper")
    until_running(SECONDS)
    workers.of(("odd",), "stopper").end(is_lost=True)
    assert not running(SECONDS)
    call(workers, "naive", "longca-core")


def test_workers_that_ended_with_a_killed_keeper_start_again(workers, monkeypatch):
    call(workers, "naive", "longca-core")
    with pytest.raises(CaseEndError):
        call(workers, "killer")
    monkeypatch.setattr(Keeper, "_code", lambda keeper, pid: pytest.fail("the new keeper was asked for an old worker"))
    call(workers, "naive", "longca-core")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("has_group", [False, pytest.param(True, marks=NEEDS_CGROUP)])
def test_what_processes_below_a_worker_compute_is_the_workers(workers, monkeypatch, has_group):
    heard = {}

    def noted(worker, command, *fds):
        heard[type(command).__name__] = (found := ask(worker, command, *fds))
        return found

    ask = RemoteWorker.ask
    monkeypatch.setattr(RemoteWorker, "ask", noted)
    if not has_group:
        monkeypatch.setattr(Keeper, "group_of", lambda keeper, worker: None)
    call(workers, "naive", "longca-core")
    assert heard["Run"].done.computed < 0.1
    call(workers, "parent")
    assert 0.38 <= heard["Run"].done.computed < 0.6
    assert heard["MakePlan"].done.computed < 0.2
    call(workers, "naive", "longca-core")
    assert heard["Run"].done.computed < 0.1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["half", "repeater"])
def test_an_answer_without_an_end_is_no_answer_at_the_deadline(workers, name):
    call(workers, "naive", "longca-core")
    workers.of(("odd",), name).start()
    began, workers.deadline = time.monotonic(), time.monotonic() + 6
    with pytest.raises(CaseEndError, match="no answer before its deadline") as end:
        call(workers, name)
    assert end.value.status is Status.TIMEOUT
    assert 6 <= time.monotonic() - began < 20
    workers.deadline = None
    call(workers, "naive", "longca-core")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["liar", "flooder", "torn"])
def test_what_is_no_answer_ends_the_worker_alone(workers, name):
    with pytest.raises(CaseEndError) as end:
        call(workers, name)
    assert end.value.status is Status.CRASHED
    call(workers, "naive", "longca-core")


def test_last_words_are_plain_text(workers):
    with pytest.raises(CaseEndError, match=r"exited with code 0. Its last words: .*the last") as end:
        call(workers, "talker")
    assert str(end.value).isprintable()


def test_a_state_that_was_changed_before_an_error_ends_with_its_case(workers):
    for _ in range(2):
        kernel = RemoteKernel(workers, "raiser", ("odd",))
        kernel.load()
        with pytest.raises(CaseEndError, match=r"found torch\.float32"):
            call(workers, "raiser")


def test_a_worker_that_ran_out_of_memory_ends_and_keeps_none(workers, monkeypatch):
    call(workers, "setter")
    assert not workers.keep_memory, "on CPUs a worker keeps nothing that others could take"
    with pytest.raises(CaseEndError, match="no memory is left") as end:
        call(workers, "exhausted")
    assert (end.value.status, workers.of(("odd",), "exhausted").is_running) == (Status.OOM, False)
    monkeypatch.setattr(workers, "_device", torch.device("cuda"))
    assert workers.keep_memory
    workers.end()
    assert not workers.keep_memory


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["by_kernel", "by_plugin"])
def test_a_state_that_an_import_changes_is_named_in_every_case(workers, name):
    for _ in range(2):
        with pytest.raises(CaseEndError, match="the import changes global state: default dtype") as end:
            call(workers, name, name)
        assert end.value.status is Status.WRONG


def test_an_import_that_fails_leaves_no_state_to_the_next_case(workers):
    for _ in range(2):
        with pytest.raises(CaseEndError, match=r"found torch\.float32"):
            RemoteKernel(workers, "raising", ("raising",)).load()


def test_an_import_may_set_up_its_library(workers):
    call(workers, "set_up", "set_up")
    assert not workers.of(("set_up",), "set_up").is_changed


def test_what_a_first_call_sets_up_is_put_back_and_what_a_later_one_changes_is_named(workers):
    kernel, x = RemoteKernel(workers, "setter", ("odd",)), draw_inputs(PROBLEM, 0)
    for _ in range(2):
        plan = kernel.plan(PROBLEM)
        kernel.forward(x.q, x.k, x.v, plan)
    names = "recursion limit, warnings filters, environment: COMPILED, environment: HOME"
    with pytest.raises(ContractError, match=f"changes global state: {names}"):
        kernel.forward(x.q, x.k, x.v, plan)


def test_what_an_error_held_is_gone_before_memory_is_given_back(monkeypatch):
    held, gone = [], []

    def raises(command):
        tensor = torch.zeros(8)
        held.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError("the device has no memory left")

    monkeypatch.setattr(worker.Worker, "_poisoned", lambda _: bool(gone.append(held[0]() is None)))
    served = worker.Worker(Mock(), WorkerSetup("cpu", frozenset(), None))
    served._do[Load] = raises
    answer = served.answer(Load("odd"))
    assert answer.exhausted
    assert gone == [True]


def test_a_worker_starts_in_a_folder_of_its_own(workers):
    call(workers, "naive", "longca-core")
    folder = os.readlink(f"/proc/{workers.of(('longca-core',), 'naive')._process.pid}/cwd")
    assert "longca-" in folder
    assert os.listdir(folder) == []


def test_a_worker_is_stopped_after_its_answer_so_no_thread_of_it_meets_the_next_inputs_early(workers):
    call(workers, "naive", "longca-core")
    pid, deadline = workers.of(("longca-core",), "naive")._process.pid, time.monotonic() + 10
    while not is_stopped(pid):
        assert time.monotonic() < deadline


def test_a_folder_that_a_kernel_removed_closed_or_replaced_is_made_again(tmp_path):
    folder = tmp_path / "gone"
    for spoil in (lambda: None, lambda: folder.write_text(""), lambda: folder.symlink_to(tmp_path / "nowhere")):
        spoil()
        assert Path(_new_folder(str(folder))).parent == folder
        folder.chmod(0o500)
        assert Path(_new_folder(str(folder))).parent == folder
        shutil.rmtree(folder)


class Window:
    """The memory of a window."""


def test_windows_that_peers_push_into_count_in_the_peak(monkeypatch):
    """A machine without a GPU has no peak, so the allocator's words are a test's."""
    measured = worker.Worker(Mock(), WorkerSetup("cpu", frozenset(), None))
    earlier, made = Window(), []
    tell_window(earlier, 300)

    def call():
        made.append(Window())
        tell_window(made[0], 4000)
        return "results"

    assert measured.peak(call) == (None, "results")
    made.clear()
    assert window_bytes() == 300
    measured._world = Mock(device=torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 50_000)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 80_000)
    assert measured.peak(call) == (30_000 + 4000 + 300, "results")
    made.clear()
    del earlier
    assert measured.peak(lambda: None) == (30_000, None)


def test_other_workers_rest_while_one_computes(workers):
    call(workers, "naive", "longca-core")
    call(workers, "daemon")
    pid = workers.of(("longca-core",), "naive")._process.pid
    assert is_stopped(pid)
    until_running(SECONDS)
    (daemon,) = running(SECONDS)
    assert not is_stopped(daemon), "what a worker has started may be at work for it"
    call(workers, "naive", "longca-core")
    assert is_stopped(daemon), "it is the keeper's child, and would compute beside the other worker"
    call(workers, "daemon")
    assert not is_stopped(daemon)


def is_stopped(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_keeper_ends_with_its_judge_even_if_it_is_stopped(fakes):
    code = """
import os, signal, subprocess, sys
from longca_bench.measuring.keeping import Keeper
keeper = Keeper(dict(os.environ))
keeper.start(None)
os.kill(keeper._process.pid, signal.SIGSTOP)
print(keeper._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ran = fakes.python("-c", code)
    assert ran.returncode == -signal.SIGKILL
    pid, deadline = int(ran.stdout), time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and b"keeper" in Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.05)
