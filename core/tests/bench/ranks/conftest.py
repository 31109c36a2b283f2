"""A distribution of a strategy and kernels of its own, and how to run a suite of them on two ranks."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

FILES = [Path(__file__).with_name(name) for name in ("toys.py", "toy_layout.py")]
KERNELS = {
    "raises": "Raises", "exits": "Exits", "hangs": "Hangs", "hangs_planning": "HangsPlanning",
    "takes_all_memory": "TakesAllMemory", "wrong": "Wrong", "wrong_later": "WrongLater",
    "hangs_on_device": "HangsOnDevice", "late_on_device": "LateOnDevice", "writes_pickles": "WritesPickles",
}  # fmt: skip
#: Strategies that misbehave, and the honest kernel that they call.
STRATEGIES = {
    "patches_time": "PatchesTime", "returns_list": "ReturnsList", "changes_state": "ChangesState",
    "changes_inputs_later": "ChangesInputsLater", "wrong_now_and_then": "WrongNowAndThen",
    "repeats_itself": "RepeatsItself",
}  # fmt: skip
PLUGIN = f"""
@hookimpl
def provide_kernel():
    takes = offer("row_intervals", dtypes=("float32",), backward="external", unequal_lengths=True, verified_on=">=8.0")
    rough = takes.model_copy(update=dict(dtypes=("bfloat16",), backward="own", rough_lse=True))
    made = [kernel(name, takes, implementation="toys:" + where) for name, where in {KERNELS!r}.items()]
    honest = kernel("honest", takes, implementation="longca_builtin.naive:Naive")
    return [*made, kernel("rough", rough, implementation="toys:Rough"), honest]

@hookimpl
def provide_cp_strategy():
    return [
        StrategyManifest(
            name=name, title="Toy", upstream="https://example.org", license="MIT", axes=("toy",),
            placements=("evenly", "lazily", "never"), layout="toy_layout:layout",
            implementation="toys:" + where,
        )
        for name, where in {{"toy": "Toy", **{STRATEGIES!r}}}.items()
    ]
"""
SUITE = f"""
name = "toys"
version = 1
memory = "16GiB"
[[sweep]]
patterns = ["causal_document"]
kernels = ["*"]
strategies = ["toy"]
placements = ["auto", "evenly", "lazily", "never"]
tokens_per_rank = [40]
heads = ["4:2"]
head_dims = [16]
dtypes = ["float32"]
[sweep.factors]
causal_document = {{ documents = [30, 1, 49] }}
[[sweep]]
patterns = ["causal"]
kernels = ["rough"]
strategies = ["toy"]
placements = ["evenly"]
tokens_per_rank = [40]
heads = ["4:2"]
head_dims = [16]
dtypes = ["bfloat16"]
[[sweep]]
patterns = ["causal"]
kernels = ["honest"]
strategies = {[*STRATEGIES, "toy"]}
placements = ["evenly"]
tokens_per_rank = [40]
heads = ["4:2"]
head_dims = [16]
dtypes = ["float32"]
"""


class Toys:
    """The distribution, and the command line that sees it."""

    def __init__(self, fakes, folder):
        self.fakes, self.folder = fakes, folder
        made = fakes.add("toy", PLUGIN)
        for file in FILES:
            shutil.copy(file, made)
        (folder / "toys.toml").write_text(SUITE, "utf-8")
        self.out = folder / "run"
        self.environment = {
            **{name: value for name, value in fakes.env.items() if name not in ("RANK", "WORLD_SIZE")},
            "PYTHONPATH": os.pathsep.join(map(str, fakes.folders)),
            "LONGCA_PLUGINS": "toy",
            "STARTED_BY_TEST": str(folder),
            "OMP_NUM_THREADS": "1",
        }

    def start(self, *options, launcher=("-m", "longca"), **environment):
        """Begins a run of the suite."""
        command = [sys.executable, *launcher, "run", str(self.folder / "toys.toml"), "--device", "cpu"]
        return subprocess.Popen(
            [*command, "--out", str(self.out), *options],
            env={**self.environment, **environment},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def records(self):
        """What has been recorded so far."""
        file = self.out / "records.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def processes(self):
        """What is still running of what a test has started: command lines by their process."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                line, environment = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
            except OSError:
                continue
            if f"STARTED_BY_TEST={self.folder}".encode() in environment:
                found[int(process.name)] = line
        return found

    def listens_on(self):
        """The addresses on which these processes listen, as Linux writes them."""
        tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
        rows = [row.split() for table in tables for row in table]
        addresses = {f"socket:[{row[9]}]": row[1].partition(":")[0] for row in rows if row[3] == "0A"}
        found = set()
        for pid in self.processes():
            with suppress(OSError):
                found |= {addresses.get(os.readlink(fd)) for fd in Path(f"/proc/{pid}/fd").iterdir()}
        return found - {None}

    def left(self, seconds=60):
        """What is still running some time after a run: a worker ends once its rank has."""
        deadline = time.monotonic() + seconds
        while (found := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found


@pytest.fixture
def toys(fakes, tmp_path):
    return Toys(fakes, tmp_path)
