"""Measuring the cases of a run: its folder, its progress, and its summary."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    from longca_bench.suites.case import Case
    from longca_bench.suites.suite import Suite

__all__ = ["measure", "run_folder"]


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
        wanted: The request of the command line.
        suite: The suite of the cases.
        cases: The cases. A case with a record in the run's folder is not measured again.
        where: The device of the run.
        registry: The registry of kernels and strategies.
        leader: The leader of the job of ranks, or None without a job.
        outcomes: The predictions for the cases. Empty without --recommended.

    Raises:
        RequestError: A mask cannot be made as requested, or the folder cannot be used.
        RecordError: A record could not be written.
        typer.Exit: A case failed, or nothing was measured. The code is 1.
    """
    from longca_bench.measuring.environment import environment
    from longca_bench.measuring.run_folder import RunFolder
    from longca_bench.measuring.runner import exit_code

    for case in cases[:1]:
        case.problem(where)  # refuses factors that do not fit each other before there is a folder
    surroundings = {**environment(registry, suite, where), "cases": len(cases)}
    if leader is not None:
        surroundings["ranks"] = leader.size
    folder = RunFolder(run_folder(wanted.out, suite.name, wanted.resume), surroundings, resume=wanted.resume)
    if outcomes:
        write_outcomes(folder.path, outcomes)
    records = _run(wanted, suite, cases, where, registry, leader, folder)
    if kernels := dict.fromkeys(record.kernel for record in records if record.unverified):
        advice = "`longca verify --unverified` verifies all their offers"
        typer.echo(f"nobody verified {', '.join(kernels)} on {where} before; {advice}", err=True)
    if kernels := dict.fromkeys(record.kernel for record in records if record.without_lse):
        typer.echo(f"{', '.join(kernels)} gave no log-sum-exp of [heads, tokens], so none was checked", err=True)
    if outcomes:
        outcomes = measured_outcomes(folder.path, outcomes, records)
    if wanted.as_json and outcomes:
        print_advised(outcomes, as_json=True)
    elif wanted.as_json:
        print_json([record.model_dump(mode="json") for record in records])
    else:
        _print_records(records, surroundings, folder.records, wanted.ab, outcomes)
    if code := max(exit_code(records), _say_nothing_measured(records, wanted.ab)):
        raise typer.Exit(code)


def _run(
    wanted: Request,
    suite: Suite,
    cases: list[Case],
    where: Device,
    registry: Registry,
    leader: Leader | None,
    folder: RunFolder,
) -> list[Record]:
    """Measures the cases without a record, and returns the records of all cases.

    The progress leaves out the cases of kernels for other devices.
    """
    from longca_bench.cli.progress import Progress, say_duration
    from longca_bench.measuring.runner import run_cases
    from longca_bench.suites.duration import duration_of, is_measured
    from longca_bench.suites.tasks import is_elsewhere

    left = [case for case in cases if case.digest(str(where)) not in folder.done]
    _say_resumed(folder, len(cases) - len(left), quiet=wanted.as_json)
    if left and not wanted.as_json and is_measured(left, where):
        say_duration(duration_of(left, where, registry), err=True)
    apart = {case.kernel for case in filter(is_elsewhere(registry, where), left)}
    progress = Progress(sum(case.kernel not in apart for case in left), quiet=wanted.as_json)
    options = replace(wanted.options, workers=count_workers(where))

    def keep(record: Record) -> None:
        folder.append(record)
        if record.kernel not in apart:
            progress.advance(record)

    try:
        together = None if leader is None else leader.run
        new = run_cases(suite, left, where, registry, keep, options, together)
    except KeyboardInterrupt:
        progress.stop()
        folder.close()
        _say_interrupted(folder.path, len(cases) - len(left) + folder.added, len(cases))
        raise
    finally:
        folder.close()
        progress.stop()
    return list({record.case: record for record in (*folder.earlier, *new)}.values())


def run_folder(out: Path | None, suite: str, resume: bool) -> Path:
    """The folder of a run.

    Args:
        out: The folder of --out, or None.
        suite: Name of the suite.
        resume: Whether the run continues another one.

    Raises:
        RequestError: The run to continue is not named.
    """
    from longca.errors import RequestError

    if out is None and resume:
        raise RequestError("--resume continues a run; name its folder with --out")
    if out is not None:
        return out
    name = f"{suite}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    names = (name, *(f"{name}-{number}" for number in range(2, 1000)))  # for runs that begin in the same second
    return next(path for each in names if not (path := Path("runs") / each).exists())


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


def _say_nothing_measured(records: Sequence[Record], ab: tuple[str, str] | None) -> int:
    """Says on stderr that nothing was measured, or that --ab compared nothing. Returns the exit code."""
    from longca_bench.measuring.status import Status
    from longca_bench.reports.text import printable
    from longca_bench.reports.winners import problem_key

    measured = [record for record in records if record.median is not None]
    problems = [{problem_key(record) for record in measured if record.kernel == kernel} for kernel in ab or ()]
    if measured and (not problems or set.intersection(*problems)):
        return 0
    refused = Counter((r.kernel, r.message) for r in records if r.status is Status.UNSUPPORTED)
    reasons = (why if why.startswith(kernel) else f"{kernel}: {why}" for (kernel, why), _ in refused.most_common(2))
    why = "; ".join(reasons)
    what = f"{ab[0]} and {ab[1]} were measured together on no case" if ab and measured else "nothing was measured"
    if not records:
        why = "no case is left for the kernels and strategies that are installed here"
    typer.echo(printable(f"{what}: {why or 'every case failed'}"), err=True)
    return 1


def _print_records(
    records: list[Record],
    surroundings: dict[str, Any],
    path: Path,
    ab: tuple[str, str] | None,
    outcomes: Sequence[Outcome],
) -> None:
    from longca_bench.reports.comparison import compare_kernels, print_comparison
    from longca_bench.reports.rows import Rows
    from longca_bench.reports.terminal import print_summary
    from longca_bench.reports.text import console, safe
    from longca_bench.reports.winners import winners

    out = console()
    print_summary(out, Rows.of(records, surroundings))
    if ab is not None:
        out.print(f"\nA is {safe(ab[0])}, B is {safe(ab[1])}; they took turns on each case.\n")
        print_comparison(out, compare_kernels(records, *ab))
    if outcomes:
        print_advised(outcomes, as_json=False)
    for disturbed in filter(None, (_wait_sentence(records), _busy_sentence(records))):
        out.print(safe(disturbed), soft_wrap=True)
    for winner in winners(records) if any(record.median is not None for record in records) else ():
        out.print(safe(winner), soft_wrap=True)
    out.print(f"records: {safe(path)}", soft_wrap=True)


def _busy_sentence(records: Sequence[Record]) -> str:
    """How many cases the machine disturbed, and by what. Empty if there are none."""
    from longca_bench.reports.words import counted

    found = [(record, record.machine["why"]) for record in records if record.machine and record.machine["busy"]]
    if not found:
        return ""
    first, why = found[0]
    case = f"{first.kernel} {first.pattern} {first.seqlen} {first.direction}"
    count = f"{counted(len(found), 'case')} of {len(records)}"
    return f"the machine was busy in {count}, such as {case}: {why}. --wait-idle SECONDS waits for a quiet moment"


def _wait_sentence(records: Sequence[Record]) -> str:
    """How long cases waited beyond the first look, and how many were measured again. Empty if all measured at once."""
    from longca_bench.reports.words import counted

    machines = [record.machine for record in records if record.machine and "waited" in record.machine]
    found = [each for each in machines if each["waited"] > 1.0 or each["measured"] > 1]
    if not found:
        return ""
    seconds, again = sum(each["waited"] for each in found), sum(each["measured"] > 1 for each in found)
    repeated = f", and {counted(again, 'case')} of them measured again" if again else ""
    return f"{counted(len(found), 'case')} waited {seconds:.0f} s for a quiet machine{repeated}"
