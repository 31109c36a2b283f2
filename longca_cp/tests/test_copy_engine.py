"""The copy engine on two GPUs. Each check runs in processes of its own, because one of them is killed."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]

RANKS = Path(__file__).parent / "gpu_ranks.py"


@pytest.mark.parametrize("check", ["agree", "waits", "layers", "full_memory", "killed"])
def test_on_two_gpus(check):
    run = subprocess.run([sys.executable, str(RANKS), check], capture_output=True, text=True, timeout=400, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
