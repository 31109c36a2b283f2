"""Submitting a job through submitit: to Slurm, or to processes of this machine."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from longca.errors import LongCAError, MissingPackageError, RequestError
from longca.import_path import safe_environment, safe_python
from longca_bench.clusters.job import WARNING, ClusterJob, count_records

if TYPE_CHECKING:
    import submitit

__all__ = ["NodeTask", "check_slurm", "submit"]

#: The number of time limits that a job may reach. A job that measures nothing ends before.
_LIMITS = 1000


def check_slurm() -> None:
    """Refuses a machine that cannot submit jobs.

    Raises:
        MissingPackageError: submitit is missing.
        RequestError: Slurm's commands are missing.
    """
    try:
        import submitit  # noqa: F401  # only whether it is there
    except ImportError:
        install = "pip install 'longca-core[slurm]', or print the script with --slurm-script"
        raise MissingPackageError("submitit", "--slurm", install) from None
    if lacking := [name for name in ("sbatch", "srun") if shutil.which(name) is None]:
        raise RequestError(
            f"--slurm submits with sbatch, and this machine has no {' and no '.join(lacking)}; run the command on a "
            "login node of the cluster, or print the script with --slurm-script"
        )


@dataclass
class NodeTask:
    """The work of one node, which submitit stores, calls, and puts back into the queue at the time limit.

    Attributes:
        job: The job.
        before: Records that were there when the work began.
    """

    job: ClusterJob
    before: int = field(default=0, init=False)

    def __call__(self) -> None:
        """Runs the node's command.

        Raises:
            LongCAError: The command failed.
        """
        import submitit

        here = submitit.JobEnvironment()
        self.before = count_records(self.job.out)
        number = here.raw_job_id
        command = self.job.command(here.hostnames[0], str(20000 + int(number) % 20000), number)
        environment = safe_environment()
        if self.job.nodes > 1:  # one node's ranks share its cores by themselves
            cores = len(os.sched_getaffinity(0)) // (self.job.ranks or 1)
            environment.setdefault("OMP_NUM_THREADS", str(max(1, cores)))
        # Slurm signals the processes of a task together. In a session of its own the command hears only this one.
        with subprocess.Popen(command, cwd=self.job.folder, env=environment, start_new_session=True) as process:
            try:
                code = process.wait()
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGTERM)
        if code:
            raise LongCAError(f"longca run ended with exit code {code} on node {here.node}; its output says why")

    def checkpoint(self) -> submitit.helpers.DelayedSubmission | None:
        """The work to do after the time limit, or None if no case ended before it."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self) if count_records(self.job.out) > self.before else None


def submit(job: ClusterJob, cluster: Literal["slurm", "local"] = "slurm") -> submitit.Job[Any]:
    """Submits a job. Its script and its output are in the folder `slurm` of the records' folder.

    Args:
        job: The job.
        cluster: `slurm`, or `local` for processes of this machine that know time limits too.

    Raises:
        RequestError: The folder cannot be written.
        LongCAError: Slurm refused the job. The message has its reason.
    """
    from submitit import AutoExecutor
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    python = shlex.join(safe_python())
    settings: dict[str, Any] = {f"{cluster}_max_num_timeout": _LIMITS, f"{cluster}_python": python}
    try:
        executor = AutoExecutor(job.out / "slurm", cluster=cluster, **settings)
    except OSError as error:
        raise RequestError(f"cannot write to {job.out}: {error.strerror}. Choose another folder with --out") from None
    options = {name.replace("-", "_"): value for name, value in job.options.items()}
    executor.update_parameters(
        name=job.name,
        nodes=job.nodes,
        tasks_per_node=1,
        gpus_per_node=job.gpus or None,
        timeout_min=job.minutes,
        slurm_signal_delay_s=WARNING,
        slurm_exclusive=True,
        slurm_srun_args=["--kill-on-bad-exit=1"],
        slurm_additional_parameters={"requeue": True, "chdir": str(job.folder), **options},
    )
    try:
        return executor.submit(NodeTask(job))
    except (FailedJobError, FailedSubmissionError) as error:
        raise LongCAError(f"sbatch refused the job: {str(error).strip()}") from None
