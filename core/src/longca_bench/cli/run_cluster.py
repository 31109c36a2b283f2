"""`longca run --slurm`: submits the run as a job of Slurm, or prints the job's script."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from longca_bench.cli.cluster_options import ClusterOptions
from longca_bench.cli.options import print_json

if TYPE_CHECKING:
    from longca.manifests import Device
    from longca_bench.cli.run_request import Request
    from longca_bench.clusters.job import ClusterJob
    from longca_bench.suites.duration import Duration

__all__ = ["cluster_device", "start_job"]

#: Minutes of a time limit beyond the upper end of the estimate, and the step to which it is rounded up.
_START, _STEP = 10, 10


def cluster_device(wanted: Request, options: ClusterOptions) -> Device:
    """The device of the nodes.

    Raises:
        RequestError: This machine has no GPU, and neither --gpu nor --device cpu says what the nodes have.
    """
    from longca.errors import RequestError
    from longca.manifests.devices import cpu_device, current_device
    from longca_advice.devices import named_device
    from longca_advice.sources import sources

    if wanted.device == "cpu":
        return cpu_device()
    if options.gpu is not None:
        return named_device(options.gpu, sources().costs.devices)
    if (here := current_device()).kind == "cpu":
        raise RequestError("this machine has no GPU like the nodes'; name theirs, such as --gpu h200, or --device cpu")
    return here


def start_job(wanted: Request, options: ClusterOptions, suite: str, where: Device, found: Duration) -> None:
    """Submits the job of a run, or prints its script.

    Args:
        wanted: The request of the command line.
        options: The options of the job.
        suite: Name of the suite.
        where: The device of the nodes.
        found: The predicted duration.

    Raises:
        RequestError: The job cannot do what was asked, or nothing predicts its time limit.
        LongCAError: Slurm refused the job.
    """
    from longca.errors import RequestError
    from longca_bench.clusters.script import sbatch_script
    from longca_bench.clusters.submit import check_slurm, submit

    if options.slurm:
        check_slurm()
    if not found.calls:
        raise RequestError(f"no case is valid on the job's ranks of {where}: {found.refusals[0]}")
    job = _job(wanted, options, suite, where, found)
    _say_notes(job, found, submits=options.slurm)
    said: dict[str, Any] = {"out": str(job.out), "minutes": job.minutes, "estimated_seconds": found.seconds}
    if options.slurm_script:
        script = sbatch_script(job)
        print_json({**said, "script": script}) if wanted.as_json else typer.echo(script, nl=False)
        return
    number = submit(job).job_id
    if wanted.as_json:
        print_json({**said, "job": number})
        return
    typer.echo(f"job {number} is submitted. Its records come to {job.out}, and its output to {job.out / 'slurm'}")


def _job(wanted: Request, options: ClusterOptions, suite: str, where: Device, found: Duration) -> ClusterJob:
    from longca.errors import RequestError
    from longca_advice.record_lines import RECORDS
    from longca_bench.cli.run_measure import run_folder
    from longca_bench.clusters.job import ClusterJob, minutes_of, named_option, sbatch_lines

    out = run_folder(wanted.out, suite, wanted.resume).absolute()
    if not wanted.resume and (out / RECORDS).exists():
        raise RequestError(
            f"{out} holds the records of another run; choose another folder with --out, or continue that run with "
            "--resume"
        )
    if options.time is None and found.seconds is None:
        raise RequestError(f"{found.sentence}. Give the job's time limit with --time, such as --time 2:00:00")
    gpus = 0 if where.kind == "cpu" else wanted.nproc or 1
    named = named_option("partition", options.partition) | named_option("account", options.account)
    return ClusterJob(
        name=f"longca-{suite}",
        arguments=(*_arguments(sys.argv[1:]), "--out", str(out), "--resume"),
        out=out,
        folder=Path.cwd(),
        nodes=options.nodes or 1,
        ranks=wanted.nproc,
        gpus=gpus,
        minutes=minutes_of(options.time) if options.time is not None else _limit(found),
        options={**named, **sbatch_lines(options.sbatch or ())},
    )


def _limit(found: Duration) -> int:
    """The time limit in minutes that an estimate asks for."""
    from longca_bench.suites.duration import WITHIN

    minutes = (found.seconds or 0.0) * WITHIN / 60 + _START
    return math.ceil(minutes / _STEP) * _STEP


def _arguments(given: Sequence[str]) -> list[str]:
    """The arguments of the job's `longca`: those of this command without the job's own options."""
    flags = {"--slurm", "--slurm-script", "--resume"}
    valued = {f"--{each.name}" for each in fields(ClusterOptions)} - flags | {"--nproc", "--out"}
    kept, left = list[str](), iter(given)
    for text in left:
        name, is_joined, _ = text.partition("=")
        if name in valued and not is_joined:
            next(left, None)
        elif name not in valued | flags:
            kept.append(text)
    return kept


def _say_notes(job: ClusterJob, found: Duration, *, submits: bool) -> None:
    """Says on stderr how long the run will take, and what may go wrong."""
    from longca_bench.clusters.job import slurm_time, unseen_folder
    from longca_bench.reports.text import printable

    if found.sentence:
        typer.echo(printable(found.sentence), err=True)
    if found.seconds is not None and job.minutes * 60 < found.seconds:
        longer = slurm_time(_limit(found))
        typer.echo(
            f"the time limit of {slurm_time(job.minutes)} is shorter than the estimate. At the limit the job goes back "
            f"into the queue, and then goes on; --time {longer} lets it end in one go",
            err=True,
        )
    if kind := unseen_folder(job.out):
        typer.echo(
            printable(
                f"{job.out} is on a file system of type {kind}, which other hosts rarely see. The nodes need to see "
                "it; choose a folder on a shared file system with --out"
            ),
            err=True,
        )
