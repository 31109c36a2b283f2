"""The example of the guide: on two ranks it has the losses that it has in one process, step by step."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "packed_transformer_cp.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("example")]


def losses(*arguments):
    """The losses that a run prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return [float(loss) for loss in re.findall(r"^step \d+  loss (\S+)$", ran.stdout, re.MULTILINE)]


@pytest.fixture(scope="module")
def alone():
    return losses(str(EXAMPLE))


def test_it_learns(alone):
    assert len(alone) == 10
    assert alone[-1] < alone[0] / 2


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "strategy",
    [*(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("ulysses", "ring_p2p")), "ring_all_gather"],
)
def test_two_ranks_have_the_losses_of_one(alone, strategy):
    together = losses(*TORCHRUN, str(EXAMPLE), "--strategy", strategy)
    assert together == pytest.approx(alone, rel=1e-5)
