"""Misbehaving kernels are named by their records, and honest ones are `ok`: all of them in one run."""

import json
import os
import re
import time
from pathlib import Path

import pytest
import torch

from ...fake_plugins import FakePlugins
from ..misbehaving import HONEST, MISBEHAVING, TABLE, misbehaving_plugins


def measured(folder, rows, device):
    """The records of some kernels by their names, from one run for each direction."""
    fakes = FakePlugins(folder)
    fakes.folders.append(misbehaving_plugins(folder / "plugins"))
    found = {}
    for direction in ("forward", "backward"):
        names = [row.name for row in rows if row.direction == direction]
        kernels = [word for name in (*names, "naive") for word in ("--kernel", name)]
        out = folder / direction
        ran = fakes.longca(
            *("run", "quick", "--seqlen", "80", "--mask", "causal", "--device", device, "--direction", direction),
            *(*kernels, "--timeout", "15", "--out", str(out)),
            OMP_NUM_THREADS="1",
        )
        assert ran.returncode == 1, ran.stderr
        assert "Traceback" not in ran.stderr
        records = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
        assert sorted(record["kernel"] for record in records) == sorted([*names, "naive"])
        assert [record["status"] for record in records if record["kernel"] == "naive"] == ["ok"]
        assert all(record["median"] is None for record in records if record["status"] not in ("ok", "suspect"))
        found |= {record["kernel"]: record for record in records}
    deadline = time.monotonic() + 60
    while left := started_by(fakes.root):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    return found


def started_by(folder):
    """The command lines of processes that have a folder in their environment, and still run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(folder) in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes())
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory):
    return measured(tmp_path_factory.mktemp("cpu"), [row for row in TABLE if row.device != "cuda"], "cpu")


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and torch sees none here")
    return measured(tmp_path_factory.mktemp("gpu"), TABLE, "cuda")


def holds(row, record):
    assert record["status"] == row.status, record["message"]
    assert re.search(row.says, record["message"])


@pytest.mark.slow
@pytest.mark.xdist_group("misbehaving")
@pytest.mark.parametrize("row", [row for row in MISBEHAVING if row.device != "cuda"], ids=lambda row: row.name)
def test_a_misbehaving_kernel_is_named(on_cpu, row):
    holds(row, on_cpu[row.name])


@pytest.mark.slow
@pytest.mark.xdist_group("misbehaving")
@pytest.mark.parametrize("row", HONEST, ids=lambda row: row.name)
def test_an_honest_kernel_is_ok(on_cpu, row):
    holds(row, on_cpu[row.name])


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("row", MISBEHAVING, ids=lambda row: row.name)
def test_a_misbehaving_kernel_is_named_on_a_gpu(on_gpu, row):
    holds(row, on_gpu[row.name])
