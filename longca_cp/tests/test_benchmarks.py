"""The benchmarks of strategies run on CPUs. Their times mean little there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
SMALL = ("--seqlens", "96", "--masks", "causal", "--heads", "4:2", "--head-dim", "16", "--seconds", "0.01")


def rows(tmp_path, name, *options):
    """The rows of a benchmark's record."""
    out = tmp_path / "record.json"
    command = [sys.executable, *TORCHRUN, str(BENCHMARKS / f"{name}.py"), *SMALL, *options, "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(out.read_text())["rows"]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_strategies_are_right_and_timed_beside_what_they_could_reach(tmp_path):
    peers = ("--peers", "torch allgather", "yunchang usp")
    found = rows(tmp_path, "peers", "--strategies", "ulysses", "usp", "--transports", "auto", "collectives", *peers)
    by_name = {(row["name"], row["direction"]): row for row in found}
    assert len(by_name) == len(found) == 2 * 8
    for name in ("torch allgather", "yunchang usp"):
        row = by_name[name, "forward"]
        assert (row["status"], row["message"]) == ("unavailable", f"{name} computes on GPUs alone")
    for name in ("alone", "abreast", "ulysses", "ulysses by collectives", "usp", "usp by collectives"):
        for direction in ("forward", "backward"):
            row = by_name[name, direction]
            assert row["status"] == "ok", row["message"]
            assert row["milliseconds"] > 0
            assert 3 <= row["turns"] <= 8
    assert by_name["alone", "forward"]["of_alone"] == 1
    assert max(by_name["usp", "forward"]["error"].values()) < 0.02
