"""`longca run --slurm`: what it refuses, what it notes, and the job that it makes of a command line."""

import json

import pytest

from longca_bench.cli.run_cluster import _arguments
from longca_bench.suites.duration import WITHIN

from ...fake_plugins import STRATEGY

ONE = ("run", "causal", "--seqlen", "64", "--heads", "4:2", "--head-dim", "32", "--dtype", "float32")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--nodes", "2"), "--nodes: these options are for a job of Slurm; add --slurm or --slurm-script"),
        (("--slurm", "--slurm-script"), "leave out one of them"),
        (("--slurm-script",), "this machine has no GPU like the nodes'; name theirs, such as --gpu h200, or"),
        (("--slurm-script", "--gpu", "h2000"), "unknown device 'h2000'"),
        (("--slurm-script", "--device", "cpu"), "Give the job's time limit with --time, such as --time 2:00:00"),
        (("--slurm-script", "--device", "cpu", "--nodes", "2"), "give the ranks on each with --nproc"),
        (("--slurm-script", "--device", "cpu", "--nproc", "3", "--strategy", "round"), "no case is valid on the job's"),
        (
            ("--slurm", "--device", "cpu", "--time", "10"),
            "this machine has no sbatch and no srun; run the command on a",
        ),
    ],
)
def test_what_is_refused(fakes, tmp_path, arguments, said):
    fakes.add("round-strategy", STRATEGY, module="round_plugin")
    assert said in fakes.refuses(*ONE, *arguments, LONGCA_PLUGINS="round-strategy", PATH=str(tmp_path))


def test_a_missing_submitit_is_named(fakes):
    code = f"import sys; sys.modules['submitit'] = None; sys.argv = {['longca', *ONE, '--slurm', '--device', 'cpu']!r}"
    ran = fakes.python("-c", f"{code}; import runpy; runpy.run_module('longca', run_name='__main__')")
    assert ran.returncode == 2
    assert "pip install 'longca-core[slurm]', or print the script with --slurm-script" in ran.stderr


def test_a_rank_submits_nothing(fakes):
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    assert "this process is a rank of one; leave out --slurm" in fakes.refuses(*ONE, "--slurm", **place)


def test_a_folder_with_records_is_kept(fakes, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "records.jsonl").write_text("", "utf-8")
    job = (*ONE, "--slurm-script", "--gpu", "h200", "--out", str(tmp_path / "run"))
    assert "holds the records of another run" in fakes.refuses(*job, "--time", "10")
    assert fakes.longca(*job, "--time", "10", "--resume").returncode == 0


def test_a_limit_below_the_estimate_is_noted_and_a_limit_is_estimated(fakes, tmp_path):
    long = ("run", "causal", "--seqlen", "4194304", "--kernel", "fa3", "--gpu", "h200", "--slurm-script", "--json")
    short = fakes.longca(*long, "--time", "5", "--out", str(tmp_path / "run"))
    assert "2 cases: about" in short.stderr
    assert "the time limit of 0-00:05:00 is shorter than the estimate. At the limit the job goes back" in short.stderr
    chosen = json.loads(fakes.longca(*long).stdout)
    assert chosen["minutes"] * 60 > WITHIN * chosen["estimated_seconds"]
    assert chosen["minutes"] % 10 == 0


def test_the_job_has_the_arguments_of_the_command():
    given = ["--no-plugin", "x", "run", "quick", "--slurm", "--nodes", "2", "--time=90", "--nproc=4", "--out", "a"]
    kept = ["--kernel", "naive", "--seqlen=64", "--fail-fast"]
    assert _arguments([*given, *kept, "--resume", "--sbatch", "qos=high"]) == [
        "--no-plugin",
        "x",
        "run",
        "quick",
        *kept,
    ]
