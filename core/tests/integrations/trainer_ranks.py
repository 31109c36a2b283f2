"""Two CPU ranks with torchtitan and Megatron, which `make install` puts into a folder of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAINERS = Path(sys.prefix) / "trainers"
needs_trainers = pytest.mark.skipif(
    not TRAINERS.is_dir(), reason="`make install` puts torchtitan and megatron-core there"
)


def said_by_ranks(script, folder, *arguments, ranks=2):
    """What the ranks of a script beside this file print, as JSON."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TRAINERS)}
    environment["LONGCA_HISTORY"] = str(folder / "history.jsonl")
    torchrun = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", str(ranks)]
    command = [*torchrun, str(Path(__file__).with_name(script)), *arguments]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-6000:]
    return json.loads(ran.stdout.splitlines()[-1])
