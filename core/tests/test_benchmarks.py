"""The scripts in core/benchmarks: what they write, on a CPU and small."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from longca.manifests import Device

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
CPU = Device("cpu")


def run(script, *arguments):
    command = [sys.executable, str(BENCHMARKS / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.exhaustive
def test_advice_keeps_what_was_measured(tmp_path):
    tiny = ("--device", "cpu", "--scale", 256, "--most", 2, "--only", "full 20000", "causal 3000")
    printed = run("advice.py", *tiny, "--out", tmp_path / "run", "--history", tmp_path / "history.jsonl")
    found = json.loads((tmp_path / "run" / "problems.json").read_text(encoding="utf-8"))
    assert [row["name"] for row in found["problems"]] == ["causal 11 32:8", "full 78 8:1"]
    assert found["summary"]["ways_measured"] == 4
    assert len((tmp_path / "run" / "records.jsonl").read_text(encoding="utf-8").splitlines()) == 8
    assert len(printed.splitlines()) == 4
    run("advice.py", *tiny, "--seconds", 0, "--out", tmp_path / "again", "--history", tmp_path / "history.jsonl")
    found = json.loads((tmp_path / "again" / "problems.json").read_text(encoding="utf-8"))
    assert len((tmp_path / "again" / "records.jsonl").read_text(encoding="utf-8").splitlines()) == 1
    assert {row["ranked"] for row in found["problems"]} == {True}, "the other problem's records are evidence"


def test_host_cost(tmp_path):
    out = tmp_path / "new" / "host_cost.json"
    printed = run("host_cost.py", "--kernels", "sdpa", "--modes", "eager", "--samples", 3, "--out", out)
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [row["pass"] for row in rows] == ["inference", "forward", "backward"]
    assert {row["status"] for row in rows} == {"ok"}
    assert len(printed.splitlines()) == 4
    for row in rows:
        assert row["added"] == row["attention"] - row["bare"]
        assert 0 < row["least"]["bare"] <= row["bare"]
        assert row["samples"] == 3


@pytest.mark.exhaustive
def test_host_cost_goes_on_after_a_kernel_that_fails(tmp_path):
    out = tmp_path / "host_cost.json"
    run("host_cost.py", "--kernels", "nobody", "sdpa", "--modes", "eager", "--samples", 1, "--out", out)
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [row["status"] for row in rows] == ["error"] * 3 + ["ok"] * 3
    assert "unknown kernel 'nobody'" in rows[0]["message"]
