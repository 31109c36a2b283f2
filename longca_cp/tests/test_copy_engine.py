"""The copy engine on two GPUs, or on one that two ranks share. Checks have processes of their own: one is killed."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a CUDA device"),
]

RANKS = Path(__file__).parent / "gpu_ranks.py"


@pytest.mark.parametrize("check", ["agree", "waits", "layers", "sinks", "full_memory", "killed"])
def test_on_gpus(check):
    run = subprocess.run([sys.executable, str(RANKS), check], capture_output=True, text=True, timeout=400, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
