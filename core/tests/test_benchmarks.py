"""The scripts in core/benchmarks: what they write, on a CPU and small."""

import json
import subprocess
import sys
from pathlib import Path

from longca.manifests import Device

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
CPU = Device("cpu")


def run(script, *arguments):
    command = [sys.executable, str(BENCHMARKS / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


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


def test_sinks_cost(tmp_path):
    out = tmp_path / "sinks_cost.json"
    printed = run("sinks_cost.py", "--kernels", "sdpa", "flex", "--seqlen", 16, "--out", out)
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [(row["kernel"], row["status"]) for row in rows] == [("sdpa", "ok"), ("flex", "error")] * 2
    assert rows[0]["cost"] == rows[0]["sinks"] / rows[0]["plain"] - 1
    assert len(printed.splitlines()) == 5
