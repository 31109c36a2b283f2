"""Two hosts, as two agents of torchrun on this machine: one folder of records, which the first rank writes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ASKED = ("run", "distributed_quick", "--kernel", "naive", "--mask", "causal", "--strategy", "ring_all_gather")
SMALL = (*ASKED, "--seqlen", "128", "--device", "cpu", "--direction", "forward")


@pytest.mark.slow
def test_two_hosts_by_torchrun(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", *meeting]
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment |= {
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    agents = [
        subprocess.Popen(
            [*torchrun, "--module", "--", "longca", *SMALL, "--out", str(tmp_path / "run")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    said = [agent.communicate(timeout=300)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    records = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text("utf-8").splitlines()]
    assert [(record["status"], record["world_size"], len(record["rank_samples"])) for record in records] == [
        ("ok", 2, 2)
    ]
    assert "".join(said).count("1 case: 1 ok") == 1, "the first rank alone prints"
