"""Runs as jobs: torchrun on two hosts, Slurm's scripts, submitit, and the time limit, all for real but for Slurm.

Programs in place of `sbatch`, `srun` and `scontrol` record their arguments. `srun` starts a node's command once for
each node, on this machine. The nodes meet over the c10d rendezvous, as on several hosts.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from longca.errors import LongCAError
from longca_bench.clusters.job import ClusterJob
from longca_bench.clusters.submit import submit

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("clusters")]

#: Two cases of a strategy: a forward and a backward.
ASKED = ("run", "distributed_quick", "--kernel", "naive", "--mask", "causal", "--strategy", "ring_all_gather")
SMALL = (*ASKED, "--seqlen", "128", "--device", "cpu")
#: The number of a job. It decides on a port, so two processes of pytest have two.
NUMBER = str(os.getpid())
PROGRAMS = {
    "sbatch": f"import shutil\nshutil.copy(sys.argv[1], folder / 'script.sh')\nprint('Submitted batch job {NUMBER}')\n",
    "scontrol": "if sys.argv[1] == 'show':\n    print('localhost')\n",
    "srun": """
import os, signal, subprocess
words = sys.argv[1:]
while words[0].startswith('-'):
    del words[:2 if words[0] in ('--output', '--error') else 1]
nodes = int(os.environ['SLURM_JOB_NUM_NODES'])
tasks = [subprocess.Popen(words, env={**os.environ, 'SLURM_PROCID': str(n), 'SLURM_NODEID': str(n)})
         for n in range(nodes)]
def forward(number, frame):
    for task in tasks:
        task.send_signal(number)
signal.signal(signal.SIGTERM, forward)
signal.signal(signal.SIGUSR2, forward)
sys.exit(max(abs(task.wait()) for task in tasks))
""",
}


class Slurm:
    """A cluster of this machine alone, and the command line on it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out, self.output = folder, folder / "run", folder / "output.log"
        self.jobs: list[subprocess.Popen[str]] = []
        (folder / "bin").mkdir()
        for name, body in PROGRAMS.items():
            text = f"#!{sys.executable}\nimport sys\nfrom pathlib import Path\nfolder = Path({str(folder)!r})\n"
            text += f"with (folder / '{name}.log').open('a') as log:\n    print(*sys.argv[1:], file=log)\n{body}"
            (folder / "bin" / name).write_text(text, "utf-8")
            (folder / "bin" / name).chmod(0o755)
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")},
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "LONGCA_HISTORY": str(folder / "history.jsonl"),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "LOGLEVEL": "INFO",  # torchrun tells each step, so that a failure shows which one it was
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }

    def longca(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "longca", *SMALL, "--out", str(self.out), *arguments]
        ran = subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=300
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def start(self, script: Path, nodes: int) -> subprocess.Popen[str]:
        """Starts a job as Slurm does."""
        slurm = {"SLURM_JOB_ID": NUMBER, "SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_NUM_NODES": str(nodes)}
        about = {"SLURM_NTASKS": str(nodes), "SLURM_LOCALID": "0", "SLURM_CPUS_ON_NODE": "2"}
        environment = {**self.environment, **slurm, **about}
        with self.output.open("a") as output:  # a pipe that nobody reads would stop the job when it is full
            job = subprocess.Popen(
                ["bash", str(script)],
                env=environment,
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.jobs.append(job)
        return job

    def finish(self, job: subprocess.Popen[str], code: int = 0) -> None:
        """Waits until a job has ended."""
        assert job.wait(timeout=300) == code, self.output.read_text("utf-8")

    def end(self) -> None:
        """Ends the jobs that still run."""
        for job in self.jobs:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()

    def log(self, program: str) -> str:
        return (self.folder / f"{program}.log").read_text("utf-8")

    def cases(self) -> list[tuple[str, str, int]]:
        file = self.out / "records.jsonl"
        text = file.read_text("utf-8") if file.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()  # the last line may be written just now
        return [(r["status"], r["direction"], r["world_size"]) for r in map(json.loads, lines)]

    def until_first(self) -> None:
        end = time.monotonic() + 300
        while not self.cases():
            is_well = time.monotonic() < end and all(job.poll() is None for job in self.jobs)
            assert is_well, self.output.read_text("utf-8") if self.jobs else "no case was measured"
            time.sleep(0.02)


BOTH = [("ok", "forward", 2), ("ok", "backward", 2)]


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    made = Slurm(tmp_path)
    yield made
    made.end()


def finished(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def test_two_hosts_by_torchrun(slurm: Slurm) -> None:
    """The command of docs/clusters.md, on two agents of one rank each."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", *meeting]
    agents = [
        subprocess.Popen(
            [*torchrun, "--module", "--", "longca", *SMALL, "--direction", "forward", "--out", str(slurm.out)],
            env=slurm.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    said = [finished(agent) for agent in agents]
    assert slurm.cases() == BOTH[:1]
    assert "".join(said).count("1 case: 1 ok") == 1, "the first rank alone prints"
    lines = (slurm.out / "records.jsonl").read_text("utf-8").splitlines()
    assert [len(json.loads(line)["rank_samples"]) for line in lines] == [2]


@pytest.mark.exhaustive
def test_a_script_runs_and_goes_on_after_its_time_limit(slurm: Slurm) -> None:
    script = slurm.folder / "job.sh"
    asked = ("--slurm-script", "--nodes", "2", "--nproc", "1", "--time", "0:30:00", "--sbatch", "qos=high")
    script.write_text(slurm.longca(*asked, "--partition", "gpu", "--account", "me"), "utf-8")
    lines = script.read_text("utf-8").splitlines()
    wanted = {"nodes=2", "time=0-00:30:00", "partition=gpu", "account=me", "qos=high", "signal=B:USR1@120", "requeue"}
    assert {f"#SBATCH --{text}" for text in wanted} <= set(lines)
    assert not slurm.out.exists(), "printing makes no folder"

    job = slurm.start(script, nodes=2)
    slurm.until_first()
    job.send_signal(signal.SIGUSR1)
    slurm.finish(job)
    assert slurm.log("scontrol").splitlines()[-1] == f"requeue {NUMBER}"
    kept = (slurm.out / "records.jsonl").read_text("utf-8")
    slurm.finish(slurm.start(script, nodes=2))
    assert slurm.cases() == BOTH
    assert (slurm.out / "records.jsonl").read_text("utf-8").startswith(kept)


def test_a_job_that_measures_nothing_does_not_go_on(slurm: Slurm) -> None:
    script = slurm.folder / "job.sh"
    script.write_text(slurm.longca("--slurm-script", "--nproc", "2", "--time", "30"), "utf-8")
    job = slurm.start(script, nodes=1)
    while not (slurm.folder / "srun.log").exists():
        time.sleep(0.02)
    time.sleep(0.5)
    job.send_signal(signal.SIGUSR1)
    slurm.finish(job, code=1)
    assert "no case ended within the time limit; submit the job with a longer --time" in slurm.output.read_text("utf-8")
    assert "requeue" not in slurm.log("scontrol")


def test_slurm_gets_the_job_through_submitit(slurm: Slurm) -> None:
    asked = ("--slurm", "--nodes", "2", "--nproc", "1", "--time", "0:30:00", "--sbatch", "qos=high", "--json")
    asked += ("--direction", "forward")
    said = json.loads(slurm.longca(*asked))
    assert (said["job"], said["out"], said["minutes"]) == (NUMBER, str(slurm.out), 30)
    script = (slurm.folder / "script.sh").read_text("utf-8")
    for text in ("nodes=2", "time=30", "qos=high", "requeue", "exclusive", "ntasks-per-node=1", "signal=USR2@120"):
        assert f"#SBATCH --{text}\n" in script
    slurm.finish(slurm.start(slurm.folder / "script.sh", nodes=2))
    assert slurm.cases() == BOTH[:1]


def node_task(controller: int) -> int:
    """The process of a local job's only task."""
    return int(Path(f"/proc/{controller}/task/{controller}/children").read_text("utf-8").split()[0])


@pytest.mark.exhaustive
def test_submitit_puts_a_job_back_at_its_time_limit(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    arguments = (*SMALL, "--out", str(slurm.out), "--resume")
    job = submit(ClusterJob("longca", arguments, slurm.out, slurm.folder, 1, 2, 0, 30, {}), "local")
    slurm.until_first()
    os.kill(node_task(job._process.pid), signal.SIGUSR2)  # type: ignore[attr-defined]  # LocalJob has it
    job.result()
    assert slurm.cases() == BOTH
    assert "1 cases were measured before and are kept" in job.stderr()


def test_a_job_that_fails_says_so(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    job = submit(ClusterJob("longca", ("run", "nothing"), slurm.out, slurm.folder, 1, None, 0, 30, {}), "local")
    with pytest.raises(Exception, match="longca run ended with exit code 2 on node 0"):
        job.result()
    assert "unknown suite or mask pattern 'nothing'" in job.stderr()
    (slurm.folder / "bin" / "sbatch").write_text("#!/bin/sh\necho 'invalid partition' >&2\nexit 1\n", "utf-8")
    with pytest.raises(LongCAError, match=r"sbatch refused the job: (.|\n)*invalid partition"):
        submit(ClusterJob("longca", ("run", "quick"), slurm.out, slurm.folder, 1, None, 0, 30, {}))
