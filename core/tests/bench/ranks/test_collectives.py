"""What needs several ranks and no more: `check_collectives`, as three processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import TCPStore

CHECKS = Path(__file__).with_name("check_collectives.py")


@pytest.mark.slow
def test_three_ranks():
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment.pop("TORCHELASTIC_RESTART_COUNT", None)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(CHECKS), str(rank), str(store.port)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(3)
    ]
    said = [rank.communicate(timeout=600)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0], "\n".join(said)
