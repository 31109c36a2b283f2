"""The script of a job, for `sbatch`. It needs nothing but Slurm and the Python that wrote it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from longca_advice.record_lines import RECORDS
from longca_bench.clusters.job import WARNING, ClusterJob, slurm_time

__all__ = ["sbatch_script"]

#: The placeholders of the command that the shell expands.
_HOST, _PORT, _NUMBER = "$host", "$port", "$SLURM_JOB_ID"

_BODY = """
# Cases with a record are not measured again. So the job may be put back into the queue at its time limit.
records() {{ cat {records} 2>/dev/null | wc -l; }}
before=$(records)
go_on() {{
  kill "$run"; wait "$run"
  if [ "$(records)" -gt "$before" ]; then scontrol requeue "$SLURM_JOB_ID"; exit; fi
  echo "no case ended within the time limit; submit the job with a longer --time" >&2; exit 1
}}
trap go_on USR1
trap 'kill "$run"; wait "$run"; exit 143' TERM

{threads}host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 20000))
srun --kill-on-bad-exit=1 {command} &
run=$!
wait "$run"
"""

#: The threads of a rank. One node's ranks share its cores by themselves.
_THREADS = "export OMP_NUM_THREADS=${{OMP_NUM_THREADS:-$((cores = SLURM_CPUS_ON_NODE / {ranks}, cores ? cores : 1))}}\n"


def sbatch_script(job: ClusterJob) -> str:
    """The complete script of a job.

    Args:
        job: The job.
    """
    lines = [f"#SBATCH --{name}" + ("" if value is True else f"={value}") for name, value in _directives(job)]
    command = " ".join(map(_quoted, job.command(_HOST, _PORT, _NUMBER)))
    threads = _THREADS.format(ranks=job.ranks) if job.nodes > 1 else ""
    body = _BODY.format(records=shlex.quote(str(job.out / RECORDS)), threads=threads, command=command)
    return "#!/bin/bash\n" + "\n".join(lines) + "\n" + body


def _quoted(text: str) -> str:
    """A word of the command. The placeholders stay open to the shell."""
    return f'"{text}"' if text.startswith("--rdzv-") else shlex.quote(text)


def _directives(job: ClusterJob) -> Iterator[tuple[str, str | bool]]:
    """The options of sbatch. The user's come last, so they replace the others."""
    yield "job-name", job.name
    yield "nodes", str(job.nodes)
    yield "ntasks-per-node", "1"
    if job.gpus:
        yield "gpus-per-node", str(job.gpus)
    yield "exclusive", True
    yield "time", slurm_time(job.minutes)
    yield "signal", f"B:USR1@{WARNING}"
    yield "requeue", True
    yield "open-mode", "append"
    yield "output", shlex.quote(f"{job.name}-%j.log")
    yield "chdir", shlex.quote(str(job.folder))
    for name, value in job.options.items():
        yield name, value if value is True else shlex.quote(str(value))
