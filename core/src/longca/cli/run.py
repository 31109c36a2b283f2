"""`longca run`: a suite, verified and measured."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longca.cli.options import (
    AsJson,
    NoPlugin,
    chosen_device,
    chosen_directions,
    count_workers,
    open_registry,
    print_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from longca.bench.cases import Case, Selection
    from longca.bench.distributed.leader import Leader
    from longca.bench.records import Record
    from longca.bench.run_folder import RunFolder
    from longca.bench.suite import Suite
    from longca.manifests import Device
    from longca.plugins import Registry

__all__ = ["run"]


def run(
    context: typer.Context,
    suite: Annotated[str, typer.Argument(help="A suite's name, or a TOML file of one.")],
    kernel: Annotated[list[str] | None, typer.Option(help="Only this kernel; repeatable.")] = None,
    mask: Annotated[list[str] | None, typer.Option(help="Only this mask pattern; repeatable.")] = None,
    seqlen: Annotated[
        list[int] | None, typer.Option(help="Only this length, or instead of those listed; repeatable.")
    ] = None,
    heads: Annotated[list[str] | None, typer.Option(help="Only these heads, such as 64:8; repeatable.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Only this seed; repeatable.")] = None,
    direction: Annotated[str | None, typer.Option(help="forward or backward alone. [default: the suite's]")] = None,
    strategy: Annotated[list[str] | None, typer.Option(help="Only this strategy; repeatable.")] = None,
    placement: Annotated[
        list[str] | None, typer.Option(help="Only this placement, or instead of those listed; repeatable.")
    ] = None,
    nproc: Annotated[
        int | None, typer.Option(help="Ranks to start with torchrun, for suites of strategies.", min=1, max=4096)
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. [default: cuda where there is one]")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the records. [default: runs/SUITE-TIME]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds a case may take.", min=0.001)] = 600.0,
    memory: Annotated[float | None, typer.Option(help="GiB of address space a worker may take.", min=0.1)] = None,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast/--keep-going", help="Skip what is left after the first failure.")
    ] = False,
    ab: Annotated[
        tuple[str, str] | None, typer.Option("--ab", metavar="KERNEL_A KERNEL_B", help="Have two kernels take turns.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be measured, and stop.")] = False,
    as_json: AsJson = False,
    no_plugin: NoPlugin = None,
) -> None:
    """Measures a suite: every case planned, verified, and only then timed."""
    from longca.bench.cases import Selection

    selection = Selection(
        kernels=_kernels(tuple(kernel or ()), ab),
        patterns=tuple(mask or ()),
        seqlens=tuple(seqlen or ()),
        directions=chosen_directions(direction),
        heads=tuple(heads or ()),
        seeds=tuple(seed or ()),
        strategies=tuple(strategy or ()),
        placements=tuple(placement or ()),
    )
    disabled = frozenset(context.obj or ()) | frozenset(no_plugin or ())
    limits = _Limits(timeout, None if memory is None else int(memory * 2**30), fail_fast, disabled)
    wanted = _Wanted(suite, selection, limits, device, nproc, out, resume, dry_run, as_json, ab)
    _in_its_place(wanted, lambda leader: _run(wanted, open_registry(context, no_plugin), leader))


def _kernels(selected: tuple[str, ...], ab: tuple[str, str] | None) -> tuple[str, ...]:
    """The kernels that are selected, be it by --kernel or by --ab."""
    from longca.errors import RequestError

    if ab is None:
        return selected
    if selected:
        raise RequestError("--ab names the kernels; leave out --kernel, or --ab")
    if ab[0] == ab[1]:
        raise RequestError(f"--ab {ab[0]} {ab[1]} compares a kernel with itself; name two kernels")
    return ab


@dataclass(frozen=True)
class _Limits:
    """What cases are held to, as `longca.bench.runner.Options` has it."""

    deadline: float
    memory: int | None
    fail_fast: bool
    disabled: frozenset[str]


@dataclass(frozen=True)
class _Wanted:
    """What was asked for on the command line."""

    suite: str
    selection: Selection
    limits: _Limits
    device: str | None
    nproc: int | None
    out: Path | None
    resume: bool
    dry_run: bool
    as_json: bool
    ab: tuple[str, str] | None


def _in_its_place(wanted: _Wanted, lead: Callable[[Leader | None], None]) -> None:
    """Does this process's part: in a job of several the first leads, and the others supervise their ranks."""
    from longca.bench.distributed.job import current_job

    job = current_job()
    if job is not None and job.rank > 0:
        from longca.bench.distributed.member import follow

        follow(job)
        return
    if job is None:
        lead(None)
        return
    from longca.bench.distributed.leader import leading

    with leading(job) as leader:
        lead(leader)


def _run(wanted: _Wanted, registry: Registry, leader: Leader | None) -> None:
    from longca.bench.cases import absent, expand
    from longca.bench.suite import load_suite

    suite, where = load_suite(wanted.suite), chosen_device(wanted.device)
    ranks = wanted.nproc if leader is None else leader.size
    _check(wanted, where, ranks)
    cases = expand(suite, registry.kernels, wanted.selection, strategies=registry.strategies, ranks=ranks)
    if wanted.dry_run or leader is not None or ranks is None:
        for name, advice in absent(suite, (*registry.kernels, *registry.strategies), wanted.selection).items():
            typer.echo(f"{name} is left out: {advice}", err=True)
    if wanted.dry_run:
        from longca.cli.run_plan import print_plan

        print_plan(registry, cases, where, wanted.as_json)
    elif leader is None and ranks is not None:
        from longca.bench.distributed.launch import launch

        if code := launch(ranks, sys.argv[1:]):
            raise typer.Exit(code)
    else:
        _measure(wanted, suite, cases, where, registry, leader)


def _check(wanted: _Wanted, where: Device, ranks: int | None) -> None:
    """Refuses what ranks cannot do."""
    from longca.errors import RequestError

    if ranks is None:
        return
    if wanted.ab:
        raise RequestError("--ab has two kernels take turns on one device; leave it out, or --nproc and torchrun")
    here = count_workers(where)
    if wanted.nproc is not None and where.kind == "cuda" and wanted.nproc > here:
        raise RequestError(f"--nproc {wanted.nproc} needs as many GPUs, and {here} are visible. Take --nproc {here}")


def _measure(
    wanted: _Wanted, suite: Suite, cases: list[Case], where: Device, registry: Registry, leader: Leader | None
) -> None:
    from longca.bench.environment import environment
    from longca.bench.run_folder import RunFolder
    from longca.bench.runner import Options, failed, run_cases
    from longca.cli.progress import Progress

    surroundings = environment(registry, suite, where)
    if leader is not None:
        surroundings["ranks"] = leader.size
    folder = RunFolder(_folder(wanted.out, suite.name, wanted.resume), surroundings, resume=wanted.resume)
    left = [case for case in cases if case.digest(str(where)) not in folder.done]
    _say_resumed(folder, len(cases) - len(left), quiet=wanted.as_json)
    progress = Progress(len(left), quiet=wanted.as_json)
    options = Options(**vars(wanted.limits))

    def keep(record: Record) -> None:
        folder.append(record)
        progress.advance(record)

    try:
        if leader is None:
            options = replace(options, workers=count_workers(where), interleave=wanted.ab is not None)
            new = run_cases(suite, left, where, registry, keep, options)
        else:
            from longca.bench.distributed.runner import run_together

            new = run_together(leader, suite, left, where, registry, keep, options)
    except KeyboardInterrupt:
        progress.stop()
        _say_interrupted(folder.path, len(cases) - len(left) + progress.done, len(cases))
        raise
    finally:
        folder.close()
        progress.stop()
    records = list({record.case: record for record in (*folder.earlier, *new)}.values())
    if wanted.as_json:
        print_json([record.model_dump(mode="json") for record in records])
    else:
        _print_records(records, folder.records, wanted.ab)
    if failed(records):
        raise typer.Exit(1)


def _folder(out: Path | None, suite: str, resume: bool) -> Path:
    from longca.errors import RequestError

    if out is None and resume:
        raise RequestError("--resume goes on with a run; say which one with --out")
    return out or Path("runs") / f"{suite}-{datetime.now(UTC):%Y%m%dT%H%M%S}"


def _say_resumed(folder: RunFolder, done: int, *, quiet: bool) -> None:
    if folder.torn and not quiet:
        typer.echo("the last line of the earlier records was torn, and is dropped; its case is run again", err=True)
    if done and not quiet:
        typer.echo(f"{done} cases were measured before and are kept", err=True)


def _say_interrupted(folder: Path, done: int, total: int) -> None:
    from longca.reports.text import printable

    where, again = printable(str(folder)), printable(shlex.quote(str(folder)))
    typer.echo(
        f"interrupted: {done} of {total} cases have records, in {where}. "
        f"To go on, add to the command: --resume --out {again}",
        err=True,
    )


def _print_records(records: list[Record], path: Path, ab: tuple[str, str] | None) -> None:
    from longca.reports.comparison import compare_kernels
    from longca.reports.comparison_table import print_comparison
    from longca.reports.run_table import print_run
    from longca.reports.text import console, safe

    out = console()
    print_run(out, records)
    if ab is not None:
        out.print(f"\nA is {safe(ab[0])}, B is {safe(ab[1])}; they took turns on each case.\n")
        print_comparison(out, compare_kernels(records, *ab))
    out.print(f"records: {safe(path)}", soft_wrap=True)
