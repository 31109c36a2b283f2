"""Streams of masks from a suite to records: right ones, wrong ones, and the readers of their records."""

import gc
import itertools
import json
import os
import re
import statistics
from math import isnan

import pytest
import torch

from longca.manifests import Device, Direction, Layout, Problem
from longca.masks import build
from longca.testing import misbehaving_plugins
from longca_advice.from_records import rows_of_folder
from longca_advice.history import history
from longca_bench.measuring import clocks, shared_inputs, stream_trial
from longca_bench.measuring.arena import Arena
from longca_bench.measuring.bench import Bench
from longca_bench.measuring.case_record import STEP
from longca_bench.measuring.instruments import Instruments, Phases
from longca_bench.measuring.keeping import Keeper
from longca_bench.measuring.noise import Noise
from longca_bench.measuring.records import StreamTimes, read_records
from longca_bench.measuring.runner import run_cases
from longca_bench.measuring.shards import Shard
from longca_bench.measuring.shared_inputs import SharedInputs
from longca_bench.measuring.shares import shares_of_all
from longca_bench.measuring.stream_windows import WINDOW
from longca_bench.measuring.workers import Workers
from longca_bench.measuring.world import World
from longca_bench.reports.rows import Rows
from longca_bench.reports.views import tables
from longca_bench.suites.cases import expand
from longca_bench.suites.suite import load_suite
from longca_bench.suites.tasks import Sharing, task_of
from longca_bench.verification import head_sample
from longca_bench.verification.inputs import draw_inputs
from longca_bench.verification.reference import reference

from ...fake_plugins import provides

CPU = Device("cpu")
SUITE = """
name = "stream"
version = 1
[[sweep]]
patterns = ["causal_document"]
kernels = ["sdpa", "naive"]
stream = 12
layers = 2
seqlens = [160]
heads = ["4:2"]
head_dims = [16]
dtypes = ["float32"]
[[sweep]]
patterns = ["uniform_block_sparse"]
kernels = ["sdpa"]
stream = 3
seqlens = [160]
heads = ["4:2"]
head_dims = [16]
dtypes = ["float32"]
[sweep.factors]
uniform_block_sparse = { block = 32, kept = 0.4 }
"""


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "stream.toml"
    path.write_text(SUITE, "utf-8")
    return load_suite(str(path))


@pytest.mark.exhaustive
def test_a_stream_has_the_steps_of_each_way(core, suite):
    records = run_cases(suite, expand(suite, core.kernels), CPU, core, lambda record: None)
    assert [record.status for record in records] == ["ok"] * 3, [record.message for record in records]
    for record, (steps, layers) in zip(records, [(12, 2), (12, 2), (3, 1)], strict=True):
        assert WINDOW < 12, "a stream of several windows is among them"
        stream = record.stream
        assert (stream.layers, record.direction) == (layers, STEP)
        for seconds in (stream.fixed, stream.fresh, stream.prefetched, stream.plan):
            assert len(seconds) == steps
        assert record.samples == stream.prefetched
        assert record.median == statistics.median(record.samples)
        assert set(stream.imbalance) == {1.0}
        assert record.machine.keys() >= {"other_cores", "drift", "busy", "why"}
        assert (record.peak_bytes, record.moved_by) == (None, None)
        found = {finding["tensor"] for finding in record.findings}
        assert {f"{name} of {way} steps" for name in ("out", "dq") for way in ("fixed", "fresh", "prefetched")} <= found
    assert not history().rows
    shown = tables("dynamic", Rows.of(records))
    assert [row[1].text for table in shown for row in table.rows] == ["sdpa", "naive", "sdpa"]
    times = {"fixed": (1.0, 4.0, 2.0), "prefetched": (1.5, 4.0, 2.0), "fresh": (2.0, 5.0, 3.5), "plan": (0.1,) * 3}
    made = StreamTimes(layers=1, imbalance=(1.0,) * 3, **times)
    rows = Rows.of([records[0].model_copy(update={"stream": made}), records[0].model_copy(update={"stream": None})])
    for column, figure in (("prefetched_over_fixed", 7.5 / 7), ("fresh_over_fixed", 1.5), ("worst_prefetched", 1.5)):
        found, none = rows[column]
        assert found == figure, "steps are compared with the same steps, and the median step would hide the first one"
        assert isnan(none)


def test_a_stream_has_a_time_of_each_step_in_each_way():
    times = dict.fromkeys(("fixed", "fresh", "prefetched", "plan", "imbalance"), (1.0, 2.0))
    assert StreamTimes(layers=1, **times).fixed == (1.0, 2.0)
    for wrong, why in (({**times, "fresh": (1.0,)}, "one time of each step"), (dict.fromkeys(times, ()), "at least 1")):
        with pytest.raises(ValueError, match=why):
            StreamTimes(layers=1, **wrong)


WRONG = """
@hookimpl
def provide_kernel():
    takes = offer("row_intervals", backward="external")
    names = ("stale", "raises", "right")
    return [kernel(name, takes, implementation=f"wrong_kernels:{name.title()}") for name in names]
"""
WRONG_KERNELS = """
from longca_builtin.naive import Naive

class Right(Naive):
    pass

class Stale(Naive):
    first = None

    def plan(self, problem):
        Stale.first = Stale.first or super().plan(problem)
        return Stale.first  # as if it had found a plan of another mask

class Raises(Naive):
    def backward(self, *arguments, **buffers):
        raise RuntimeError("no backward today")
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_records_say_what_is_wrong_and_no_evidence_is_learnt(fakes, tmp_path):
    (fakes.add("wrong", WRONG) / "wrong_kernels.py").write_text(WRONG_KERNELS, "utf-8")
    text = SUITE.rpartition("[[sweep]]")[0].replace('["sdpa", "naive"]', '["stale", "raises", "right"]')
    (tmp_path / "stream.toml").write_text(text, "utf-8")
    out = tmp_path / "run"
    options = {"LONGCA_HISTORY": str(tmp_path / "history.jsonl"), "OMP_NUM_THREADS": "1"}
    ran = fakes.longca("run", str(tmp_path / "stream.toml"), "--device", "cpu", "--out", str(out), **options)
    assert ran.returncode == 1, ran.stderr
    found = {record.kernel: record for record in read_records(out)}
    assert {name: record.status for name, record in found.items()} == {
        "stale": "wrong", "raises": "error", "right": "ok",
    }  # fmt: skip
    assert "of fixed steps" in found["stale"].message
    assert "no backward today" in found["raises"].message
    assert list(rows_of_folder(out)) == []
    (doubt,) = (json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines())
    assert (doubt["status"], doubt["kernel"]) == ("wrong", "stale"), "no time of a stream is learnt"
    shown = fakes.longca("report", str(out), "--view", "dynamic")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "WRONG" in shown.stdout


#: It notes the command of each process that imports it.
MARKS = """
with open({path!r}, "a") as marks, open("/proc/self/cmdline") as command:
    marks.write(command.read())
"""
CHANGES = """
@hookimpl
def provide_kernel():
    takes = offer("row_intervals", backward="external")
    names = ("in_plan", "in_steps", "starts_threads")
    return [kernel(name, takes, implementation=f"changing:{name}") for name in names]
"""
CHANGING = """
import os, threading, torch
from longca_builtin.naive import Naive

class in_plan(Naive):
    def plan(self, problem):
        torch.set_default_dtype(torch.float64)
        return super().plan(problem)

class in_steps(Naive):
    def forward(self, *arguments, **buffers):
        os.environ["LATER"] = "1"
        return super().forward(*arguments, **buffers)

class starts_threads(Naive):
    def forward(self, *arguments, **buffers):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return super().forward(*arguments, **buffers)
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_worker_of_a_stream_imports_one_distribution_and_names_changed_states(fakes, tmp_path):
    own, strange = tmp_path / "own", tmp_path / "strange"
    (fakes.add("changes", CHANGES + MARKS.format(path=str(own))) / "changing.py").write_text(CHANGING, "utf-8")
    fakes.add("stranger", provides("strange") + MARKS.format(path=str(strange)))
    kernels = '["in_plan", "in_steps", "starts_threads"]'
    text = SUITE.rpartition("[[sweep]]")[0].replace('["sdpa", "naive"]', kernels).replace("stream = 12", "stream = 2")
    (tmp_path / "stream.toml").write_text(text, "utf-8")
    out = tmp_path / "run"
    fakes.longca("run", str(tmp_path / "stream.toml"), "--device", "cpu", "--out", str(out), OMP_NUM_THREADS="1")
    assert {record.kernel: (str(record.status), record.message) for record in read_records(out)} == {
        "in_plan": ("wrong", "planning or a first step changes global state: default dtype"),
        "in_steps": ("wrong", "a step changes global state: environment: LATER"),
        "starts_threads": ("wrong", "a step changes global state: threads"),
    }
    assert "longca_bench.measuring.keeper" in own.read_text()
    assert "longca" in strange.read_text(), "it was probed"
    assert "longca_bench.measuring.keeper" not in strange.read_text()


EXPECTED = {"keeps_by_keys": "suspect", "naive": "ok"}


@pytest.mark.slow
def test_a_stream_meets_inputs_that_a_kernel_cannot_know(fakes, tmp_path):
    """A kernel that keeps a part of its work for each head of k is fast in all ways, and slow on new inputs."""
    fakes.folders.append(misbehaving_plugins(tmp_path / "misbehaving"))
    text = SUITE.rpartition("[[sweep]]")[0].replace('["sdpa", "naive"]', '["keeps_by_keys", "naive"]')
    (tmp_path / "stream.toml").write_text(text.replace("stream = 12", "stream = 4"), "utf-8")
    options = {"OMP_NUM_THREADS": "1", "LONGCA_HISTORY": str(tmp_path / "history.jsonl")}
    for out in (tmp_path / "run", tmp_path / "again"):  # on a busy machine a slow call accuses nobody
        fakes.longca("run", str(tmp_path / "stream.toml"), "--device", "cpu", "--out", str(out), **options)
        found = {record.kernel: record for record in read_records(out)}
        statuses = {name: record.status for name, record in found.items()}
        if statuses == EXPECTED:
            break
    assert statuses == EXPECTED, {name: record.message for name, record in found.items()}
    assert "on new inputs took" in found["keeps_by_keys"].message


class Cramped(World):
    """A device on which two steps fit. It notes when memory is given back, between the phases."""

    def __init__(self, events):
        super().__init__(torch.device("cpu"))
        self._events = events

    def free_bytes(self):
        return 0

    def give_back(self):
        self._events.append("give back")

    def meet(self):
        self._events.append("meet")


def measured(core, suite, world, tell=lambda phase: None, wait_idle=0.0):
    """The result of a suite's first stream, and the workers that it had."""
    keeper = Keeper(dict(os.environ))
    workers = Workers(keeper, world.device)
    bench = Bench(CPU, Instruments(world, workers, Phases(tell)), {160}, wait_idle)
    try:
        return bench.measure(task_of(core, expand(suite, core.kernels)[0], CPU)), workers
    finally:
        keeper.close()


@pytest.mark.exhaustive
def test_steps_wait_for_a_quiet_machine_and_are_made_again(core, suite, monkeypatch):
    """The machine is busy before the first steps, and while they are made for the first time."""
    looks, stop = itertools.count(), Noise.stop

    def stopped(watch, samples=()):
        busy = next(looks) in (0, 2)
        return {**stop(watch, samples), "busy": busy, "why": "a neighbour" if busy else ""}

    monkeypatch.setattr(Noise, "stop", stopped)
    # Real neighbours may slow down calls on new inputs, whatever the patched watch says.
    monkeypatch.setattr(stream_trial, "disturbed", lambda *_: lambda: True)
    result, _ = measured(core, suite, World(torch.device("cpu")), wait_idle=60.0)
    assert result.status == "ok", result.message
    machine = result.fields["machine"]
    assert machine["measured"] == 2
    assert machine["waited"] > 1.0
    assert not machine["busy"], "what was made on a busy machine does not count"
    assert len(result.fields["samples"]) == len(result.fields["stream"]["fixed"]) == 12


@pytest.mark.exhaustive
def test_a_stream_keeps_little_memory_and_verifies_heads_by_turns(core, suite, monkeypatch):
    """A device's free memory holds what a judge keeps of a window, and NCCL and the worker find theirs."""
    monkeypatch.setattr(head_sample, "SAMPLED_PAIRS", 0)
    for seconds in (clocks.ALLOWED, clocks.SLOWER):  # the subject is memory, and other tests use the cores too
        monkeypatch.setitem(seconds, "cpu", 1.0)
    heads, events = [], []

    def seen(problem, inputs, turn):
        made = reference(problem, inputs, turn)
        heads.append(made.sample.heads_kv)
        return made

    monkeypatch.setattr(shared_inputs, "reference", seen)
    result, workers = measured(core, suite, Cramped(events), events.append)
    assert result.status == "ok", result.message
    first = heads[0]
    assert heads == [first, ((first[0] + 1) % 2,)] * 6, "each step has the head after that of the step before"
    assert result.fields["verified_kv_heads"] == (0, 1)
    made = "time verify give back "
    # Steps on new inputs are made again where other processes slowed them down.
    assert re.fullmatch(f"meet load (inputs give back ({made}){{4,}}give back ){{6}}", " ".join([*events, ""]))
    gc.collect()
    assert workers.arena.unused_bytes == workers.arena.nbytes, "no window outlives its checks"


def test_the_bytes_of_a_shard_are_those_of_its_tensors():
    problem = Problem(
        mask=build("causal", 32), heads_q=4, heads_kv=2, head_dim=16, dtype="bfloat16", device=CPU,
        direction="backward",
    )  # fmt: skip
    inputs, arena = draw_inputs(problem, 0), Arena(torch.device("cpu"))
    shared = SharedInputs(inputs, shares_of_all(problem, 1), inputs, reference(problem, inputs))
    sharing = Sharing(Layout(((),), (((0, 32),),)), (0,), True, False)
    shard = Shard(problem, sharing, shared, World(torch.device("cpu")), arena, False)
    vectors = 32 * (4 + 4 + 2 + 2) * 16  # of q and dout, k and v, and as many of out, dq, dk and dv
    rows = 32 * (4 + 4 + 2 + 2) * (4 + 4) + 32 * 4 * 8  # spread and PyTorch's distance in float32, lse in float64
    assert shard.nbytes == 3 * 2 * vectors + 4 * vectors + rows
    landing = shard.landing(Direction.FORWARD) | shard.landing(Direction.BACKWARD)
    assert sum(x.nbytes for x in landing.values()) == 2 * vectors + 4 * 4 * 32
