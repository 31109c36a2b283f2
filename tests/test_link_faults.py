"""Ranks that go wrong on a link, for real: the command line names the culprit, and the next case is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

PLUGIN = """
from longca import StrategyManifest, Transport, hookimpl
from longca_cp import RING_P2P

NAMES = {names}

@hookimpl
def provide_cp_strategy():
    made = ({{"name": name, "implementation": "link_faults:" + where}} for name, where in NAMES.items())
    return [RING_P2P.model_copy(update=fields) for fields in made]
"""
SUITE = """
name = "faults"
version = 1

[[sweep]]
patterns = ["full"]
kernels = ["naive"]
seqlens = [128]
heads = ["4:2"]
head_dims = [16]
dtypes = ["float32"]
strategies = {strategies}
placements = ["contiguous"]
transports = ["copy_engine"]
"""
NAMES = {
    "dies_pushing": "DiesPushing",
    "hangs_pushing": "HangsPushing",
    "raises_pushing": "RaisesPushing",
    "takes_large_window": "TakesLargeWindow",
}
#: What the case of each strategy must be found to be, and what must be said of it.
FAULTS = {
    "dies_pushing": ("crashed", "rank 1 of 2: the worker exited with code 7"),
    "hangs_pushing": ("timeout", "rank 1 of 2 is still in phase 'push' after 30 s, and the others wait"),
    "raises_pushing": ("error", "rank 1 of 2: RuntimeError: the copy engine is on strike"),
    "takes_large_window": ("oom", "1125899906842624"),
}


def _environment(folder: Path) -> dict[str, str]:
    """The environment of a run that sees a distribution of faulty strategies."""
    info = folder / "plugin" / "longca_faulty-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: longca-faulty\nVersion: 1.0\n", "utf-8")
    (info / "entry_points.txt").write_text("[longca]\nfaulty = faulty_strategies\n", "utf-8")
    (info.parent / "faulty_strategies.py").write_text(PLUGIN.format(names=NAMES), "utf-8")
    code = Path(__file__).with_name("link_faults.py").read_text("utf-8")
    (info.parent / "link_faults.py").write_text(code, "utf-8")
    return {
        **{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")},
        "PYTHONPATH": str(info.parent),
        "STARTED_BY_TEST": str(folder),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }


def _left(folder: Path, seconds: float = 60) -> list[int]:
    """The processes of a run that are still there some time after it: a worker ends once its rank has."""
    deadline = time.monotonic() + seconds
    while (found := _running(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _running(folder: Path) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        if f"STARTED_BY_TEST={folder}".encode() in environment:
            found.append(int(process.name))
    return found


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", [0, 1])
def test_the_culprit_on_a_link_is_named_and_the_next_case_is_right(tmp_path, part):
    out, names = tmp_path / "run", list(FAULTS)[part::2]
    (tmp_path / "faults.toml").write_text(SUITE.format(strategies=names), "utf-8")
    command = [sys.executable, "-m", "longca", "run", "faults.toml", "--device", "cpu", "--gpus", "2"]
    command += ["--timeout", "30", "--out", str(out)]
    ran = subprocess.run(command, env=_environment(tmp_path), capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    lines = (out / "records.jsonl").read_text("utf-8").splitlines()
    found = {(record["strategy"], record["direction"]): record for record in map(json.loads, lines)}
    assert len(found) == 2 * len(names)
    for name in names:
        status, said = FAULTS[name]
        record = found[name, "forward"]
        assert (record["status"], said in record["message"]) == (status, True), record["message"]
        assert record["median"] is None
        after = found[name, "backward"]
        assert (after["status"], after["moved_by"]) == ("ok", "ring=copy_engine"), after["message"]
    assert "Traceback" not in ran.stderr
    assert not _left(tmp_path)
