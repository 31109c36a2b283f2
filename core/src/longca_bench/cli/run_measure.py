"""Measuring the cases of a run: its folder, its progress, and the tables at its end."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from longca_bench.cli.options import count_workers, print_json
from longca_bench.cli.run_advised import measured_outcomes, print_advised, write_outcomes

if TYPE_CHECKING:
    from longca.manifests import Device
    from longca.plugins import Registry
    from longca_bench.cli.run_request import Request
    from longca_bench.measuring.outcome import Outcome
    from longca_bench.measuring.records import Record
    from longca_bench.measuring.run_folder import RunFolder
    from longca_bench.ranks.leader import Leader
    from longca_bench.suites.cases import Case
    from longca_bench.suites.suite import Suite

__all__ = ["measure"]


def measure(
    wanted: Request,
    suite: Suite,
    cases: list[Case],
    where: Device,
    registry: Registry,
    leader: Leader | None,
    outcomes: Sequence[Outcome] = (),
) -> None:
    """Measures cases and prints their records.

    Args:
        wanted: What was asked for on the command line.
        suite: The suite of the cases.
        cases: The cases; those that the run's folder has records of are not measured again.
        where: What they run on.
        registry: Where kernels and strategies come from.
        leader: The leader of the job of ranks; None without one.
        outcomes: What was predicted of the cases; empty without --recommended.

    Raises:
        RequestError: A mask that cannot be made as asked, or a folder that cannot be used.
        RecordError: A record could not be written.
        typer.Exit: A case failed; the code is 1.
    """
    from longca_bench.cli.progress import Progress
    from longca_bench.measuring.environment import environment
    from longca_bench.measuring.run_folder import RunFolder
    from longca_bench.measuring.runner import Options, failed, run_cases

    for case in cases[:1]:
        case.problem(where)  # refuses factors that do not fit each other before there is a folder
    surroundings = environment(registry, suite, where)
    if leader is not None:
        surroundings["ranks"] = leader.size
    folder = RunFolder(_folder(wanted.out, suite.name, wanted.resume), surroundings, resume=wanted.resume)
    if outcomes:
        write_outcomes(folder.path, outcomes)
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
            from longca_bench.ranks.runner import run_together

            new = run_together(leader, suite, left, where, registry, keep, options)
    except KeyboardInterrupt:
        progress.stop()
        _say_interrupted(folder.path, len(cases) - len(left) + progress.done, len(cases))
        raise
    finally:
        folder.close()
        progress.stop()
    records = list({record.case: record for record in (*folder.earlier, *new)}.values())
    if outcomes:
        outcomes = measured_outcomes(folder.path, outcomes, records)
    if wanted.as_json and outcomes:
        print_advised(outcomes, as_json=True)
    elif wanted.as_json:
        print_json([record.model_dump(mode="json") for record in records])
    else:
        _print_records(records, folder.records, wanted.ab, outcomes)
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
    from longca_bench.reports.text import printable

    where, again = printable(str(folder)), printable(shlex.quote(str(folder)))
    typer.echo(
        f"interrupted: {done} of {total} cases have records, in {where}. "
        f"To go on, add to the command: --resume --out {again}",
        err=True,
    )


def _print_records(records: list[Record], path: Path, ab: tuple[str, str] | None, outcomes: Sequence[Outcome]) -> None:
    from longca_bench.reports.comparison import compare_kernels
    from longca_bench.reports.comparison_table import print_comparison
    from longca_bench.reports.run_table import print_run
    from longca_bench.reports.text import console, safe

    out = console()
    print_run(out, records)
    if ab is not None:
        out.print(f"\nA is {safe(ab[0])}, B is {safe(ab[1])}; they took turns on each case.\n")
        print_comparison(out, compare_kernels(records, *ab))
    if outcomes:
        print_advised(outcomes, as_json=False)
    out.print(f"records: {safe(path)}", soft_wrap=True)
