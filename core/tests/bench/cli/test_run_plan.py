"""A plan of what would be measured: its rows come as they are known."""

import json
import subprocess
import sys

import pytest

from longca import registry
from longca.manifests import Device
from longca_bench.cli import run_plan
from longca_bench.suites.case import Case

CASES = [
    Case(
        kernel="naive",
        pattern=pattern,
        seqlen=64,
        lengths="auto",
        seed=0,
        heads_q=4,
        heads_kv=2,
        head_dim=32,
        dtype="float32",
        direction="forward",
    )
    for pattern in ("full", "causal", "causal")
]


class Interrupting:
    """A registry that is interrupted at its last case."""

    kernels = registry().kernels

    def __init__(self):
        self.left = len(CASES) - 1

    def resolve(self, kernel, problem):
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return registry().resolve(kernel, problem)


def test_rows_are_printed_as_they_are_known(capsys):
    with pytest.raises(KeyboardInterrupt):
        run_plan.print_plan(Interrupting(), CASES, Device("cpu"), as_json=False)
    printed = capsys.readouterr()
    assert [line.split()[:2] for line in printed.out.splitlines()] == [["naive", "full"], ["naive", "causal"]]
    assert printed.err == ""


def test_json_is_whole_and_stderr_says_how_far_it_is(capsys, monkeypatch):
    run_plan.print_plan(registry(), CASES, Device("cpu"), as_json=True)
    printed = capsys.readouterr()
    assert [row["pattern"] for row in json.loads(printed.out)] == ["full", "causal", "causal"]
    assert printed.err == "", "a short plan is its own progress"
    monkeypatch.setattr(run_plan, "_SILENCE", -1)
    run_plan.print_plan(registry(), CASES[:2], Device("cpu"), as_json=True)
    assert capsys.readouterr().err == "[1/2] cases are resolved\n[2/2] cases are resolved\n"


def test_placing_a_case_needs_no_torch():
    code = "import sys, longca_bench.suites.tasks, longca_bench.cli.run_plan; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
