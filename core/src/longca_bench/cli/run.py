"""`longca run`: verifies and measures a suite or one problem, or prints its plan."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longca.errors import RequestError
from longca_bench.cli.mask_options import MaskOptions, say_lengths, takes_mask
from longca_bench.cli.options import chosen_device, count_workers, open_registry, print_json, takes_options
from longca_bench.cli.run_advised import advised, print_advised
from longca_bench.cli.run_options import RunOptions, chosen_suite
from longca_bench.measuring.options import let_threads_sleep

if TYPE_CHECKING:
    from longca.manifests import Device
    from longca.plugins import Registry
    from longca_bench.measuring.outcome import Outcome
    from longca_bench.ranks.leader import Leader
    from longca_bench.suites.case import Case
    from longca_bench.suites.cases import Selection

__all__ = ["print_plan", "run"]

_MANY_PAIRS = 100


@takes_mask("seqlen", "seqlen_k", "seed")
@takes_options(RunOptions, "options")
def run(
    context: typer.Context,
    suite: Annotated[str, typer.Argument(help="A suite's name, a TOML file of one, or a mask pattern.")],
    described: MaskOptions = MaskOptions(),
    options: RunOptions = RunOptions(),
) -> None:
    """Measures a suite or one problem. Every case is planned, verified, and only then timed.

    A mask pattern in place of a suite is one problem for every kernel. The options below describe the mask. Factors
    that are not given are drawn. A kernel that does not take the problem is listed as unsupported.
    """
    from longca_bench.ranks.job import current_job

    let_threads_sleep()
    options.check()
    request = suite, described, options, options.selection(), context
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
    ranks = options.nproc if leader is None else leader.size
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
    if options.dry_run and outcomes:
        print_advised(outcomes, as_json=options.as_json)
    elif options.dry_run:
        print_plan(registry, cases, where, options.as_json)
    else:
        from longca_bench.cli.run_measure import measure

        with _leader(leader, ranks) as leads:
            measure(options, suite, cases, where, registry, leads, outcomes)


def _leader(leader: Leader | None, ranks: int | None) -> AbstractContextManager[Leader | None]:
    """The leader of torchrun's job or of the ranks that this process starts, or None without ranks."""
    if leader is not None or ranks is None:
        return nullcontext(leader)
    from longca_bench.ranks.job import local_job
    from longca_bench.ranks.leader import leading

    return leading(local_job(ranks))


def _check_ranks(options: RunOptions, where: Device, ranks: int | None) -> None:
    """Refuses options that do not go with ranks."""
    if ranks is None:
        return
    if options.ab:
        raise RequestError("--ab lets two kernels take turns on one device; leave it out, or --nproc and torchrun")
    here = count_workers(where)
    if options.nproc is not None and where.kind == "cuda" and options.nproc > here:
        raise RequestError(f"--nproc {options.nproc} needs as many GPUs, and {here} are visible. Take --nproc {here}")


def print_plan(registry: Registry, cases: list[Case], device: Device, as_json: bool) -> None:
    """Prints each case with the form that would be measured, or with the reasons against it.

    Lines are printed as soon as each case is resolved. If some kernels run on the device, one line names those that run
    on other devices only.

    Args:
        registry: The registry of kernels and strategies.
        cases: The cases.
        device: The device of the run.
        as_json: Whether to print JSON.
    """
    from longca.manifests.verdict import paragraph
    from longca_bench.reports.text import printable
    from longca_bench.reports.words import elsewhere_text, mask_name
    from longca_bench.suites.duration import duration_of
    from longca_bench.suites.tasks import is_elsewhere

    if as_json:
        print_json([_row(registry, case, device) for case in cases])
        return
    elsewhere = dict.fromkeys(case.kernel for case in filter(is_elsewhere(registry, device), cases))
    here = [case for case in cases if case.kernel not in elsewhere] or cases
    width = max([24, *(len(mask_name(case.pattern, dict(case.factors))) for case in cases)])
    for case in here:
        row = _row(registry, case, device)
        outcome = row["form"] or f"unsupported: {paragraph(row['reasons'])}"
        shared = f" {row['strategy']:15} {row['placement']:15} {row['mesh']:20}" if row.get("strategy") else ""
        name = mask_name(row["pattern"], row["factors"])
        about = f"{row['kernel']:12} {name:{width}} {row['seqlen']:>8} {row['heads']:>6} {row['direction']:9}"
        typer.echo(printable(f"{about}{shared} {outcome}"))
    if len(here) < len(cases):
        typer.echo(printable(elsewhere_text(len(cases) - len(here), elsewhere)))
    if sentence := duration_of(cases, device, registry).sentence:
        typer.echo(printable(sentence))


def _row(registry: Registry, case: Case, device: Device) -> dict[str, Any]:
    about = {
        "kernel": case.kernel,
        "pattern": case.pattern,
        "factors": dict(case.factors),
        "seqlen": case.seqlen,
        "heads": f"{case.heads_q}:{case.heads_kv}",
        "direction": case.direction,
    }
    if case.parallel is None:
        verdict = registry.resolve(case.kernel, case.problem(device))
        return {**about, "form": verdict.form or None, "reasons": [str(reason) for reason in verdict.reasons]}
    from longca.errors import UnsupportedError
    from longca_bench.suites.tasks import task_of

    about |= {"strategy": case.parallel.strategy, "placement": case.parallel.placement, "mesh": case.parallel.mesh_text}
    try:
        task = task_of(registry, case, device)
    except UnsupportedError as error:
        return {**about, "form": None, "reasons": [str(error)]}
    return {**about, "placement": task.placed, "form": task.form, "reasons": []}
