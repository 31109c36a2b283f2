"""Measuring the cases of a run: its folder, its progress, and its summary."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from longca_bench.cli.options import count_workers, print_json
from longca_bench.cli.run_advised import measured_outcomes, print_advised, write_outcomes

if TYPE_CHECKING:
    from longca.manifests import Device
    from longca.plugins import Registry
    from longca_bench.cli.run_options import RunOptions
    from longca_bench.measuring.outcome import Outcome
    from longca_bench.measuring.records import Record
    from longca_bench.measuring.run_folder import RunFolder
    from longca_bench.ranks.leader import Leader
    from longca_bench.suites.case import Case
    from longca_bench.suites.suite import Suite

__all__ = ["measure", "run_folder"]


def measure(
    options: RunOptions,
    suite: Suite,
    cases: list[Case],
    where: Device,
    registry: Registry,
    leader: Leader | None,
    outcomes: Sequence[Outcome] = (),
) -> None:
    """Measures cases and prints their records.

    Args:
        options: The options of the command line.
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
    folder = RunFolder(run_folder(options.out, suite.name, options.resume), surroundings, resume=options.resume)
    if outcomes:
        write_outcomes(folder.path, outcomes)
    records = _run(options, suite, cases, where, registry, leader, folder)
    if kernels := dict.fromkeys(record.kernel for record in records if record.unverified):
        advice = "`longca verify --unverified` verifies all their offers"
        typer.echo(f"nobody verified {', '.join(kernels)} on {where} before; {advice}", err=True)
    if kernels := dict.fromkeys(record.kernel for record in records if record.without_lse):
        typer.echo(f"{', '.join(kernels)} gave no log-sum-exp of [heads, tokens], so none was checked", err=True)
    if outcomes:
        outcomes = measured_outcomes(folder.path, outcomes, records)
    if options.as_json and outcomes:
        print_advised(outcomes, as_json=True)
    elif options.as_json:
        print_json([record.model_dump(mode="json") for record in records])
    else:
        _print_records(records, surroundings, folder.records, options.ab, outcomes)
    if code := max(exit_code(records), _say_nothing_measured(records, options.ab)):
        raise typer.Exit(code)


def _run(
    options: RunOptions,
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
    from longca_bench.measuring.runner import run_cases
    from longca_bench.suites.tasks import is_elsewhere

    left = [case for case in cases if case.digest(str(where)) not in folder.done]
    done = len(cases) - len(left)
    if not options.as_json:
        _say_beforehand(folder, done, left, where, registry)
    elsewhere = {case.kernel for case in filter(is_elsewhere(registry, where), left)}
    progress = _Progress(sum(case.kernel not in elsewhere for case in left), quiet=options.as_json)
    settings = options.settings(registry.disabled, count_workers(where))

    def keep(record: Record) -> None:
        folder.append(record)
        if record.kernel not in elsewhere:
            progress.advance(record)

    try:
        new = run_cases(suite, left, where, registry, keep, settings, None if leader is None else leader.run)
    except KeyboardInterrupt:
        progress.stop()
        _say_interrupted(folder.path, done + folder.added, len(cases))
        raise
    finally:
        folder.close()
        progress.stop()
    return list({record.case: record for record in (*folder.earlier, *new)}.values())


class _Progress:
    """A bar on a terminal, lines elsewhere, and nothing if JSON is printed.

    A line is printed for each case that was measured or that failed. Unsupported cases are only counted.

    Args:
        total: Number of cases to come.
        quiet: Whether to show nothing.
    """

    def __init__(self, total: int, *, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True, highlight=False)
        self._quiet, self._total, self._done = quiet, total, 0
        columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(elapsed_when_finished=True)
        self._bar = Progress(*columns, TextColumn("{task.description}"), console=console, transient=True)
        self._task = self._bar.add_task("", total=total)
        self._shown = not quiet and console.is_terminal
        if self._shown:
            self._bar.start()

    def advance(self, record: Record) -> None:
        """Shows the record of a finished case."""
        from longca_bench.measuring.status import Status
        from longca_bench.reports.text import safe
        from longca_bench.reports.words import mask_name

        self._done += 1
        shared = f" {record.strategy} {record.placed or record.placement}" if record.strategy else ""
        mask = mask_name(record.pattern, record.factors)
        what = f"{record.kernel} {mask} {record.seqlen} {record.direction}{shared}"
        self._bar.update(self._task, advance=1, description=safe(what))
        if self._quiet or self._shown or record.status is Status.UNSUPPORTED:
            return
        time = f"{record.median * 1e3:.3g} ms" if record.median is not None else ""
        typer.echo(f"[{self._done}/{self._total}] {safe(what)}: {record.status} {time}".rstrip(), err=True)

    def stop(self) -> None:
        """Clears the bar."""
        if self._shown:
            self._bar.stop()


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


def _say_beforehand(folder: RunFolder, done: int, left: Sequence[Case], where: Device, registry: Registry) -> None:
    """Says on stderr what is kept of an earlier run, and how long the run will take if that is predicted."""
    from longca_bench.reports.text import printable
    from longca_bench.suites.duration import duration_of, is_measured

    if folder.torn:
        typer.echo("the last line of the earlier records was torn, and is dropped; its case is run again", err=True)
    if done:
        typer.echo(f"{done} cases were measured before and are kept", err=True)
    if left and is_measured(left, where) and (found := duration_of(left, where, registry)).seconds is not None:
        typer.echo(printable(found.sentence), err=True)


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
    rows = Rows.of(records, surroundings)
    print_summary(out, rows)
    if ab is not None:
        out.print(f"\nA is {safe(ab[0])}, B is {safe(ab[1])}; they took turns on each case.\n")
        print_comparison(out, compare_kernels(records, *ab))
    if outcomes:
        print_advised(outcomes, as_json=False)
    for disturbed in filter(None, (_wait_sentence(records), _busy_sentence(records))):
        out.print(safe(disturbed), soft_wrap=True)
    for winner in winners(rows) if any(record.median is not None for record in records) else ():
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
