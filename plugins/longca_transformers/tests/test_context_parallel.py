"""Models of transformers compute on 1, 2 and 4 ranks what they compute on one device."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("longca_cp", reason="the strategies are in longca-cp")

RANKS = Path(__file__).parent / "sharded_ranks.py"
#: The checks of each world. They are read, because the module starts by itself.
CHECKS = next(
    ast.literal_eval(node.value)
    for node in ast.parse(RANKS.read_text()).body
    if isinstance(node, ast.Assign) and node.targets[0].id == "CHECKS"
)

pytestmark = pytest.mark.xdist_group("sharded transformers")


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """The words of each rank on each check, by the world's size and the rank."""
    folder = tmp_path_factory.mktemp("sharded")
    alike = {"OMP_NUM_THREADS": "1", "LONGCA_PLUGINS": "cp", "GLOO_SOCKET_IFNAME": "lo"}
    environment = {**os.environ, **alike}
    command = [sys.executable, str(RANKS), str(folder)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


@pytest.mark.parametrize(("size", "check"), [(size, check) for size, checks in CHECKS.items() for check in checks])
def test_ranks_compute_what_one_device_does(said, size, check):
    for rank in range(size):
        words = said[f"{size}-{rank}"].get(check, "an earlier check failed")
        assert words == "ok" or isinstance(words, list), f"rank {rank} of {size}: {words}"


def test_trainer_has_the_losses_and_norms_of_one_process(said):
    wanted = said["alone"]["trainer"]
    assert wanted[-1][0] < wanted[0][0]
    for rank in range(2):
        for found, step in zip(said[f"2-{rank}"]["trainer_on_ranks"], wanted, strict=True):
            assert found == pytest.approx(step, rel=1e-4)
