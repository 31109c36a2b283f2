"""The scripts in core/benchmarks that measure plans: what they write, on a CPU and small."""

import importlib.util
import json
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from longca import registry
from longca.manifests import Device
from longca.manifests.devices import current_device

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


@pytest.mark.exhaustive
def test_training_steps_of_several_kinds_of_attention_have_one_loss(tmp_path):
    out = tmp_path / "training_step.json"
    printed = run("training_step.py", "--small", "--seqlen", 192, "--lengths", "pile", "--out", out)
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["losses_alike"] is True
    assert set(record["kernel"].split("+")) <= set(registry().kernels)
    assert (record["settings"]["heads"], record["environment"]["device"]["kind"]) == ("8:2", current_device().kind)
    rows = {row["subject"]: row for row in record["rows"]}
    assert set(rows) == {"longca", "flex", "sdpa_dense", "sdpa_documents"}
    measured = {name: row for name, row in rows.items() if row["status"] == "ok"}
    assert measured.keys() >= rows.keys() - {"flex"}, "FlexAttention has no backward on CPUs"
    for row in measured.values():
        assert row["losses"] == pytest.approx(rows["sdpa_dense"]["losses"], rel=1e-3)
        assert row["low_seconds"] <= row["seconds"] <= row["high_seconds"]
        parts = [sum(each) for each in zip(*(v for k, v in row["samples"].items() if k != "seconds"), strict=True)]
        assert all(part <= whole for part, whole in zip(parts, row["samples"]["seconds"], strict=True))
        assert row["state_bytes"] > 3 * 4 * 64 * 64
    assert "losses differ by at most 0.0" in printed


@pytest.mark.exhaustive
def test_losses_that_are_no_numbers_fail(tmp_path):
    with pytest.raises(subprocess.CalledProcessError) as failed:
        run("training_step.py", "--small", "--rate", 1e30, "--subjects", "longca", "sdpa_dense")
    assert "losses differ by at most nan%; 2% are allowed" in failed.value.stdout


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("kind", ["longca", "flex", "sdpa_documents"])
def test_kinds_of_attention_are_alike(monkeypatch, kind):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    kinds, llama = (importlib.import_module(name) for name in ("kinds_of_attention", "small_llama"))
    asked = Namespace(seqlen=200, vocabulary=64, lengths="pile", max_share=0.3, backend="eager")
    q, k, v = (torch.randn(200, heads, 16) for heads in (4, 2, 2))
    outs = []
    for each in (kinds.KINDS[kind], kinds.KINDS["sdpa_dense"]):
        made = each(asked, torch.device("cpu"), torch.float32)
        batches = [llama.Batch.draw(step, asked, made.device) for step in (0, 1)]
        outs.append(torch.stack([made.attend(q, k, v, made.prepare(batch)) for batch in batches]))
    assert not torch.allclose(outs[0][0], outs[0][1], atol=1e-3), "the documents change"
    torch.testing.assert_close(*outs, atol=2e-6, rtol=1e-5)


def test_a_dense_mask_that_does_not_fit_is_a_row(tmp_path):
    out = tmp_path / "training_step.json"
    run("training_step.py", "--small", "--seqlen", 2**17, "--steps", 0, "--subjects", "sdpa_dense", "--out", out)
    (row,) = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert (row["status"], row["message"]) == ("error", "ValueError: a dense mask of 64 GiB; at most 16 are made")


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


def test_host_parts(tmp_path):
    out = tmp_path / "new" / "host_parts.json"
    printed = run("host_parts.py", "--calls", "eager inference", "eager forward", "--samples", 3, "--out", out)
    record = json.loads(out.read_text(encoding="utf-8"))
    assert len(printed.splitlines()) == 1 + len(record["rows"]) == 10
    for call in ("eager inference", "eager forward"):
        rows = [row for row in record["rows"] if row["call"] == call]
        assert rows[-1]["until"] == pytest.approx(sum(row["added"] for row in rows))
        assert all(0 < row["least"] <= row["until"] for row in rows)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor's CPU code needs g++")
def test_host_parts_of_a_compiled_call():
    printed = run("host_parts.py", "--calls", "compiled inference", "--samples", 3).splitlines()
    assert len(printed) == 7
    assert {line[:18] for line in printed[1:]} == {"compiled inference"}


def test_prefetch(tmp_path):
    out = tmp_path / "prefetch.json"
    printed = run("prefetch.py", "--seqlens", 256, "--steps", 5, "--device-ms", 2, "--out", out)
    rows = {row["host"]: row for row in json.loads(out.read_text(encoding="utf-8"))["rows"]}
    assert set(rows) == {"asleep", "awake"}
    assert len(printed.splitlines()) == 3
    for row in rows.values():
        assert {len(samples) for samples in row["samples"].values()} == {5}
        assert min(map(min, row["samples"].values())) >= 2e-3
        assert row["fresh_over_fixed"] == pytest.approx(row["fresh"] / row["fixed"])
