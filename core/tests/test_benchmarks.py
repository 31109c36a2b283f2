"""The scripts in core/benchmarks that measure plans: what they write, on a CPU and small."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from longca.manifests import Device

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
CPU = Device("cpu")


@pytest.fixture
def plan_costs():
    spec = importlib.util.spec_from_file_location("plan_costs", BENCHMARKS / "plan_costs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(script, *arguments):
    command = [sys.executable, str(BENCHMARKS / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_block_metadata(tmp_path):
    out = tmp_path / "new" / "block_metadata.json"
    printed = run(
        "block_metadata.py", "--kernels", "naive", "sdpa", "--seqlens", 256, 512, "--heads", "4:2", "--out", out
    )
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["environment"]["device"]["kind"] in ("cpu", "cuda")
    rows = {(row["kernel"], row["seqlen"]): row for row in record["rows"]}
    assert set(rows) == {(name, seqlen) for name in ("naive", "sdpa", "choose_blocks") for seqlen in (256, 512)}
    assert len(printed.splitlines()) == 6
    naive, chosen = rows["naive", 512], rows["choose_blocks", 512]
    assert (naive["status"], naive["direction"], naive["form"]) == ("ok", "backward", "block_sparse")
    assert len(naive["samples"]) == len(chosen["samples"]) == 5
    assert {"first_seconds", "seconds", "metadata_bytes", "peak_bytes", "workspace_bytes"} <= set(naive)
    assert chosen["metadata_bytes"] == naive["mask_bytes"] == 2 * 8 * 1 + 2 * 9 * 8, "bits of two masks, and bounds"


def test_planning_writes_its_rows(tmp_path):
    run("planning.py", "--kernels", "naive", "--max-seqlen", 8192, "--out", tmp_path)
    rows = json.loads((tmp_path / "planning.json").read_text(encoding="utf-8"))["rows"]
    assert len(rows) == 12
    assert {row["status"] for row in rows} == {"ok"}
    assert (tmp_path / "planning.png").exists()


@pytest.mark.parametrize(
    ("error", "status"), [(torch.OutOfMemoryError("full"), "oom"), (MemoryError("full"), "oom"), (KeyError(1), "error")]
)
def test_what_fails_is_a_row(plan_costs, error, status):
    def fail():
        raise error

    row = plan_costs.attempted(fail, CPU)
    assert (row["status"], row["message"]) == (status, "KeyError: 1" if status == "error" else "full")


def test_samples_end_with_their_budget(plan_costs, monkeypatch):
    assert len(plan_costs.repeated(lambda: None, CPU)["samples"]) == 5
    monkeypatch.setattr(plan_costs, "BUDGET", 1e-9)
    assert len(plan_costs.repeated(lambda: None, CPU)["samples"]) == 1


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
