"""The strategies of longca-cp as `longca run` measures them: two ranks on a CPU, from command line to records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from longca import registry

# 4 query heads and 2 KV heads of 32 in float32, of 128 tokens on each of two ranks.
Q, KV = 128 * 4 * 32 * 4, 128 * 2 * 32 * 4
LSE = 128 * 4 * 4
#: Bytes that each rank sends, by strategy and direction. Ulysses sends half of its heads, and keeps the others.
SENT = {
    ("ulysses", "forward"): {"all_to_all": (Q + 2 * KV + Q + LSE) // 2},
    ("ulysses", "backward"): {"all_to_all": (Q + Q + 2 * KV) // 2},
    ("ring_p2p", "forward"): {"p2p": 2 * KV},
    ("ring_p2p", "backward"): {"p2p": 2 * KV + 2 * KV + 2 * KV},
}


def run(folder: Path, *options: str, code: int = 0) -> tuple[list[dict[str, Any]], str]:
    command = [sys.executable, "-m", "longca", "run", "distributed_quick", "--device", "cpu", "--gpus", "2"]
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")},
        "LONGCA_HISTORY": str(folder / "history.jsonl"),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    out = folder / "run"
    ran = subprocess.run(
        [*command, "--out", str(out), *options], env=environment, capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    assert not (folder / "history.jsonl").exists(), "what several ranks measure says nothing of a kernel alone"
    return [json.loads(line) for line in (out / "records.jsonl").read_text("utf-8").splitlines()], ran.stdout


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", [1, 0])
def test_every_strategy(tmp_path, part):
    names = sorted(registry().strategies)[part::2]
    asked = [option for name in names for option in ("--strategy", name)]
    records, said = run(tmp_path, "--kernel", "naive", "--mask", "shared_question", "--seqlen", "256", *asked)
    found = {(record["strategy"], record["direction"]): record for record in records}
    assert len(records) == len(found) == 2 * len(names)
    for record in records:
        assert record["status"] == "ok", record["message"]
        assert all(finding["passed"] for finding in (*record["findings"], *record["alone_findings"]))
        assert record["placement"] == "auto"
        assert record["placed"] in registry().strategy(record["strategy"]).placements
        assert record["strategy"] in said
    for case in found.keys() & SENT.keys():
        assert found[case]["sent_bytes"] == {kind: [size, size] for kind, size in SENT[case].items()}
    assert ("usp" not in names) or found["usp", "forward"]["mesh"] == "ring=1,ulysses=2"


@pytest.mark.slow
def test_what_does_not_resolve_is_refused_with_its_reason(tmp_path):
    asked = ("--kernel", "naive", "--mask", "causal", "--strategy", "ring_p2p", "--placement", "zigzag_document")
    records, said = run(tmp_path, *asked, code=1)  # nothing was measured
    assert {record["status"] for record in records} == {"unsupported"}
    assert all("has no documents to place tokens within" in record["message"] for record in records)
    assert "has no documents" in " ".join(said.split())
