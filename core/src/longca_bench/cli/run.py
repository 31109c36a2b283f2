"""`longca run`: verifies and measures a suite or one problem, or prints its plan."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longca.errors import RequestError
from longca_bench.cli.mask_options import MaskOptions, say_lengths
from longca_bench.cli.options import chosen_device, count_workers, masks, open_registry, takes_options
from longca_bench.cli.run_advised import advised, measured_outcomes, print_advised, write_outcomes
from longca_bench.cli.run_options import RunOptions, chosen_suite
from longca_bench.measuring.options import let_threads_sleep

if TYPE_CHECKING:
    from longca.manifests import Device
    from longca.plugins import Registry
    from longca_bench.measuring.outcome import Outcome
    from longca_bench.measuring.records import Record
    from longca_bench.ranks.leader import Leader
    from longca_bench.suites.case import Case
    from longca_bench.suites.cases import Selection
    from longca_bench.suites.suite import Suite

__all__ = ["run", "run_folder"]

_MANY_PAIRS = 100


@takes_options(MaskOptions, "described", ("seqlen", "seqlen_k", "seed"))
@takes_options(RunOptions, "options")
def run(
    context: typer.Context,
    suite: Annotated[
        str | None,
        typer.Argument(help="A suite, a TOML file of one, or a mask as show-mask takes it.", autocompletion=masks),
    ] = None,
    options: RunOptions = RunOptions(),
    described: MaskOptions = MaskOptions(),
) -> None:
    """Measures a suite or one problem. Every case is planned, verified, and only then timed.

    A mask pattern in place of a suite is one problem for every kernel. The options below describe the mask. Factors
    that are not given are drawn. A kernel that does not take the problem is listed as unsupported.
    """
    from longca_bench.ranks.job import current_job

    let_threads_sleep()
    options.check()
    name = described.named(suite, "suite such as quick, a pattern such as causal")
    request = name, described, options, options.selection(), context
    job = current_job()
    if job is None:
        _run(*request, leader=None)
    elif job.rank > 0:
        from longca_bench.ranks.member import follow

        follow(job)
    else:
        from longca_bench.ranks.leader import leading

        with leading(job) as leader:
            _run(*request, leader=leader)


def _run(
    name: str,
    described: MaskOptions,
    options: RunOptions,
    selection: Selection,
    context: typer.Context,
    leader: Leader | None,
) -> None:
    """Does the part of the only process, or of the first process of a job."""
    from longca_bench.suites.cases import absent, expand
    from longca_bench.suites.tasks import takes

    registry, where = open_registry(context, options.no_plugin), chosen_device(options.device)
    ranks = options.gpus if leader is None else leader.size
    suite, selection = chosen_suite(name, options, described, selection, ranks)
    _check_ranks(options, where, ranks)
    outcomes: list[Outcome] = []
    if options.recommended is not None:
        suite, outcomes = advised(options, suite, where, registry, ranks)
    valid = takes(registry, where, allow_unverified=options.unverified)
    found = expand(suite, registry.kernels, selection, strategies=registry.strategies, ranks=ranks, takes=valid)
    cases = [replace(case, allow_unverified=options.unverified) for case in found]
    if (pairs := sum("+" in case.kernel for case in cases)) > _MANY_PAIRS:
        typer.echo(f"{pairs} of {len(cases)} cases are pairs; name kernels with --kernel for fewer", err=True)
    if described.lengths is not None:
        say_lengths(described.lengths)
    for absentee, advice in absent(suite, (*registry.kernels, *registry.strategies), selection).items():
        typer.echo(f"{absentee} is left out: {advice}", err=True)
    if not options.dry_run:
        with _leader(leader, ranks) as leads:
            _measure(options, suite, cases, where, registry, leads, outcomes)
    elif outcomes:
        print_advised(outcomes, as_json=options.as_json)
    else:
        from longca_bench.cli.run_output import print_plan

        print_plan(registry, cases, where, options.as_json)


def _leader(leader: Leader | None, ranks: int | None) -> AbstractContextManager[Leader | None]:
    """The leader of torchrun's job or of the ranks that this process starts, or None without ranks."""
    if leader is not None or ranks is None:
        return nullcontext(leader)
    from longca_bench.ranks.job import local_job
    from longca_bench.ranks.leader import leading

    return leading(local_job(ranks))


def _check_ranks(options: RunOptions, where: Device, ranks: int | None) -> None:
    """Refuses options that do not go with ranks."""
    if ranks is not None and options.ab:
        raise RequestError("--ab lets two kernels take turns on one device; leave it out, or --gpus and torchrun")
    if options.gpus is not None and where.kind == "cuda" and options.gpus > (here := count_workers(where)):
        raise RequestError(f"--gpus {options.gpus} needs as many GPUs, and {here} are visible. Take --gpus {here}")


def _measure(
    options: RunOptions,
    suite: Suite,
    cases: list[Case],
    where: Device,
    registry: Registry,
    leader: Leader | None,
    outcomes: list[Outcome],
) -> None:
    """Measures the cases that have no record in the run's folder, and prints the records of all."""
    from longca_bench.cli.run_output import Progress, print_problems, print_records, say_beforehand, say_interrupted
    from longca_bench.measuring.environment import environment
    from longca_bench.measuring.run_folder import RunFolder
    from longca_bench.measuring.runner import run_cases
    from longca_bench.suites.tasks import is_elsewhere

    for case in cases[:1]:
        case.problem(where)  # refuses factors that do not fit each other before there is a folder
    surroundings = {**environment(registry, suite, where), "cases": len(cases)}
    if leader is not None:
        surroundings["ranks"] = leader.size
    folder = RunFolder(run_folder(options.out, suite.name, options.resume), surroundings, resume=options.resume)
    if outcomes:
        write_outcomes(folder.path, outcomes)
    left = [case for case in cases if case.digest(str(where)) not in folder.done]
    if not options.as_json:
        say_beforehand(folder, len(cases) - len(left), left, where, registry)
    elsewhere = {case.kernel for case in filter(is_elsewhere(registry, where), left)}
    progress = Progress(sum(case.kernel not in elsewhere for case in left), quiet=options.as_json)
    settings = options.settings(suite, count_workers(where))

    def keep(record: Record) -> None:
        folder.append(record)
        if record.kernel not in elsewhere:
            progress.advance(record)

    try:
        with progress.bar:
            new = run_cases(suite, left, where, registry, keep, settings, None if leader is None else leader.run)
    except KeyboardInterrupt:
        say_interrupted(folder.path, len(cases) - len(left) + folder.added, len(cases))
        raise
    finally:
        folder.close()
    records = list({record.case: record for record in (*folder.earlier, *new)}.values())
    if outcomes:
        outcomes = measured_outcomes(folder.path, outcomes, records)
    if not (options.as_json or outcomes):
        print_problems(cases, where)
    lacks = print_records(options, records, surroundings, folder, where, outcomes)
    if lacks or any(record.status.is_failure for record in records):
        raise typer.Exit(1)


def run_folder(out: Path | None, suite: str, resume: bool) -> Path:
    """The folder of --out, or a new one. Runs that begin in the same second have folders of their own."""
    if out is None and resume:
        raise RequestError("--resume continues a run; name its folder with --out")
    if out is not None:
        return out
    name = f"{suite}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    names = (name, *(f"{name}-{number}" for number in range(2, 1000)))
    return next(path for each in names if not (path := Path("runs") / each).exists())
