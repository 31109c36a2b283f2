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
    peers = ("--peers", "torch allgather", "ringmaster ring")
    found = rows(tmp_path, "peers", "--strategies", "ulysses", "usp", "--transports", "auto", "collectives", *peers)
    by_name = {(row["name"], row["direction"]): row for row in found}
    assert len(by_name) == len(found) == 2 * 8
    for name in ("torch allgather", "ringmaster ring"):
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


@pytest.mark.exhaustive
@pytest.mark.slow
def test_every_way_of_overlapping_is_timed(tmp_path):
    found = rows(tmp_path, "overlap", "--chunks", "1", "2")
    forward = [row["name"] for row in found if row["direction"] == "forward"]
    chunked = ["ulysses in 1", "ring_all_gather in 1", "ring_all_gather in 2"]
    ordered = [f"{name} {order}" for name in ("ring_p2p", "usp", "loongtrain") for order in ("beside", "before")]
    assert forward == ["alone", "abreast", *chunked, *ordered]
    assert all(row["milliseconds"] > 0 and row["of_alone"] > 0 for row in found)
    assert {row["transport"] for row in found} == {"collectives"}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_rings_that_push_are_timed_once(tmp_path):
    found = rows(tmp_path, "overlap", "--chunks", "1", "--transport", "copy_engine")
    forward = [row["name"] for row in found if row["direction"] == "forward"]
    rings = [f"{name} beside" for name in ("ring_p2p", "usp", "loongtrain")]
    assert forward == ["alone", "abreast", "ulysses in 1", "ring_all_gather in 1", *rings]
    assert {row["transport"] for row in found} == {"copy_engine"}


RECORDS = Path(__file__).parents[2] / "results" / "h200" / "distributed"


@pytest.mark.slow
@pytest.mark.skipif(not RECORDS.is_dir(), reason="the records are not in a wheel")
def test_predictions_are_as_good_as_promised(tmp_path):
    out = tmp_path / "predicted.json"
    runs = [str(RECORDS / run) for run in ("two", "four", "two-placed")]
    command = [sys.executable, str(BENCHMARKS / "predict.py"), *runs, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    found = json.loads(out.read_text())
    assert [(row["fitted_to"], row["tried_on"]) for row in found["crossed"]] == [(2, 2), (2, 4), (4, 2), (4, 4)]
    assert all(row["median"] <= 0.02 and row["p90"] <= 0.06 for row in found["crossed"])
