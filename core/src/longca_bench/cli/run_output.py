"""The words of `longca run`: its plan, its progress, and the summary of its records."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from longca.adviser import AUTO
from longca.errors import UnsupportedError
from longca.manifests import Direction
from longca_bench.cli.options import print_json
from longca_bench.cli.run_advised import print_advised
from longca_bench.reports.text import console, print_problem, printable, safe
from longca_bench.reports.words import counted, elsewhere_text, mask_name

if TYPE_CHECKING:
    from longca.manifests import Device
    from longca.plugins import Registry
    from longca_bench.cli.run_options import RunOptions
    from longca_bench.measuring.outcome import Outcome
    from longca_bench.measuring.records import Record
    from longca_bench.measuring.run_folder import RunFolder
    from longca_bench.suites.case import Case

__all__ = ["Progress", "print_plan", "print_problems", "print_records", "say_beforehand", "say_interrupted"]


#: Problems that are printed above their results.
_FEW = 3
#: The meaning of times on a CPU, and the way to an answer for a GPU.
_SKIPS = "A kernel that skips what a mask hides is faster on it than on the full mask"
_FOR_A_GPU = "Ask for one: longca recommend causal --seqlen 65536 --heads 64:8 --device h200"


def print_problems(cases: Sequence[Case], device: Device) -> None:
    """Prints the problems of cases above their results, unless there are many."""
    asked: dict[Case, dict[str, None]] = {}
    for case in cases:
        problem = replace(case, kernel="", direction=Direction.FORWARD, parallel=None)
        asked.setdefault(problem, {})[case.direction] = None
    where = f"{cases[0].parallel.world_size} × {device}" if cases and cases[0].parallel else ""
    for problem, directions in asked.items() if len(asked) <= _FEW else ():
        print_problem(console(), problem.problem(device).describe(" and ".join(directions), where))


def print_plan(registry: Registry, cases: list[Case], device: Device, as_json: bool) -> None:
    """Prints each case with the form that would be measured, or with the reasons against it.

    Lines are printed as soon as each case is resolved. If some kernels run on the device, one line names those that run
    on other devices only.
    """
    from longca.manifests.verdict import paragraph
    from longca_bench.suites.duration import duration_of
    from longca_bench.suites.tasks import is_elsewhere

    if as_json:
        print_json([_plan_row(registry, case, device) for case in cases])
        return
    print_problems(cases, device)
    elsewhere = dict.fromkeys(case.kernel for case in filter(is_elsewhere(registry, device), cases))
    here = [case for case in cases if case.kernel not in elsewhere] or cases
    width = max([24, *(len(mask_name(case.pattern, dict(case.factors))) for case in cases)])
    for case in here:
        row = _plan_row(registry, case, device)
        outcome = f"unsupported: {paragraph(row['reasons'])}" if row["reasons"] else row["form"] or ""
        shared = f" {row['strategy']:15} {row['placement']:15} {row['mesh']:20}" if "strategy" in row else ""
        name = mask_name(row["pattern"], row["factors"])
        about = f"{row['kernel']:12} {name:{width}} {row['seqlen']:>8} {row['heads']:>6} {row['direction']:9}"
        typer.echo(printable(f"{about}{shared} {outcome}".rstrip()))
    if len(here) < len(cases):
        typer.echo(printable(elsewhere_text(len(cases) - len(here), elsewhere)))
    if sentence := duration_of(cases, device, registry).sentence:
        typer.echo(printable(sentence))


def _plan_row(registry: Registry, case: Case, device: Device) -> dict[str, Any]:
    """A case of a plan. Its form is None if it is unsupported, or if `auto` would search its layout first."""
    from longca_bench.suites.tasks import task_of

    row: dict[str, Any] = {
        "kernel": case.kernel,
        "pattern": case.pattern,
        "factors": dict(case.factors),
        "seqlen": case.seqlen,
        "heads": f"{case.heads_q}:{case.heads_kv}",
        "direction": case.direction,
    }
    if case.parallel is None:
        verdict = registry.resolve(case.kernel, case.problem(device))
        return {**row, "form": verdict.form or None, "reasons": [str(reason) for reason in verdict.reasons]}
    shared = case.parallel
    row |= {"strategy": shared.strategy, "placement": shared.placement, "mesh": shared.mesh_text}
    try:
        form = None if shared.placement == AUTO else task_of(registry, case, device).form
    except UnsupportedError as error:
        return {**row, "form": None, "reasons": [str(error)]}
    return {**row, "form": form, "reasons": []}


def say_beforehand(folder: RunFolder, done: int, left: Sequence[Case], where: Device, registry: Registry) -> None:
    """Says on stderr what is kept of an earlier run, and how long the run will take if that is predicted."""
    from longca_bench.suites.duration import duration_of, is_measured

    predicts = left and (where.kind == "cpu" or is_measured(left, where))
    if folder.torn:
        typer.echo("the last line of the earlier records was torn, and is dropped; its case is run again", err=True)
    if done:
        typer.echo(f"{done} cases were measured before and are kept", err=True)
    if predicts and (found := duration_of(left, where, registry)).seconds is not None:
        typer.echo(printable(found.sentence), err=True)


def say_interrupted(folder: Path, done: int, total: int) -> None:
    """Says on stderr how an interrupted run goes on."""
    typer.echo(
        f"interrupted: {done} of {total} cases have records, in {printable(str(folder))}. "
        f"To go on, add to the command: --resume --out {printable(shlex.quote(str(folder)))}",
        err=True,
    )


class Progress:
    """A bar on a terminal, lines elsewhere, and nothing if JSON is printed.

    A line is printed for each case that was measured or that failed. Unsupported cases are only counted.
    """

    def __init__(self, total: int, *, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        err = Console(stderr=True, highlight=False)
        columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(elapsed_when_finished=True)
        hidden = quiet or not err.is_terminal
        self.bar = Bar(*columns, TextColumn("{task.description}"), console=err, transient=True, disable=hidden)
        self._task = self.bar.add_task("", total=total)
        self._total, self._done, self._lines = total, 0, hidden and not quiet

    def advance(self, record: Record) -> None:
        """Shows the record of a finished case."""
        from longca_bench.measuring.status import Status

        self._done += 1
        shared = f" {record.strategy} {record.placed or record.placement}" if record.strategy else ""
        mask = mask_name(record.pattern, record.factors)
        what = safe(f"{record.kernel} {mask} {record.seqlen} {record.direction}{shared}")
        self.bar.update(self._task, advance=1, description=what)
        if self._lines and record.status is not Status.UNSUPPORTED:
            time = f" {record.median * 1e3:.3g} ms{'~' * bool(record.busy)}" if record.median is not None else ""
            typer.echo(f"[{self._done}/{self._total}] {what}: {record.status}{time}", err=True)


def print_records(
    options: RunOptions,
    records: list[Record],
    surroundings: dict[str, Any],
    folder: RunFolder,
    where: Device,
    outcomes: Sequence[Outcome],
) -> bool:
    """Prints the records of a run. Returns whether nothing was measured, or --ab compared nothing."""
    if kernels := dict.fromkeys(record.kernel for record in records if record.unverified):
        advice = "`longca verify --unverified` verifies all their offers"
        typer.echo(f"nobody verified {', '.join(kernels)} on {where} before; {advice}", err=True)
    if kernels := dict.fromkeys(record.kernel for record in records if record.without_lse):
        typer.echo(f"{', '.join(kernels)} gave no log-sum-exp of [heads, tokens], so none was checked", err=True)
    if options.as_json and outcomes:
        print_advised(outcomes, as_json=True)
    elif options.as_json:
        print_json([record.model_dump(mode="json") for record in records])
    else:
        _print_summary(records, surroundings, folder.records, options.ab, outcomes)
    if lacking := _nothing_measured(records, options.ab):
        typer.echo(printable(lacking), err=True)
    return bool(lacking)


def _print_summary(
    records: list[Record],
    surroundings: dict[str, Any],
    path: Path,
    ab: tuple[str, str] | None,
    outcomes: Sequence[Outcome],
) -> None:
    from longca_bench.reports.rows import Rows
    from longca_bench.reports.terminal import print_summary
    from longca_bench.reports.winners import winners

    out = console()
    rows = Rows.of(records, surroundings)
    print_summary(out, rows)
    if ab is not None:
        from longca_bench.reports.comparison import compare_kernels, print_comparison

        out.print(f"\nA is {safe(ab[0])}, B is {safe(ab[1])}; they took turns on each case.\n")
        print_comparison(out, compare_kernels(records, *ab))
    if outcomes:
        print_advised(outcomes, as_json=False)
    measured = any(record.median is not None for record in records)
    for sentence in (*_waited(records), *(winners(rows) if measured else ())):
        out.print(safe(sentence), soft_wrap=True)
    if measured and surroundings["device"]["kind"] == "cpu":
        threads = counted(surroundings["torch_threads"], "thread")
        said = f"Times are of this CPU with {threads}, and say nothing about a GPU"
        out.print(f"{said}. {_SKIPS}. {_FOR_A_GPU}", soft_wrap=True)
    out.print(f"records: {safe(path)}", soft_wrap=True)


def _nothing_measured(records: Sequence[Record], ab: tuple[str, str] | None) -> str:
    """The reason why nothing was measured, or why --ab compared nothing. Empty if neither is so."""
    from longca_bench.measuring.status import Status
    from longca_bench.reports.winners import problem_key

    measured = [record for record in records if record.median is not None]
    problems = [{problem_key(record) for record in measured if record.kernel == kernel} for kernel in ab or ()]
    if measured and (not problems or set.intersection(*problems)):
        return ""
    refused = Counter((r.kernel, r.message) for r in records if r.status is Status.UNSUPPORTED)
    reasons = (why if why.startswith(kernel) else f"{kernel}: {why}" for (kernel, why), _ in refused.most_common(2))
    why = "; ".join(reasons) or "every case failed"
    what = f"{ab[0]} and {ab[1]} were measured together on no case" if ab and measured else "nothing was measured"
    return f"{what}: {why if records else 'no case is left for the kernels and strategies that are installed here'}"


def _waited(records: Sequence[Record]) -> list[str]:
    """How many cases waited for a quiet machine beyond the first look."""
    seen = [record.machine for record in records if record.machine and "waited" in record.machine]
    waits = [each for each in seen if each["waited"] > 1.0 or each["measured"] > 1]
    if not waits:
        return []
    again = sum(each["measured"] > 1 for each in waits)
    repeated = f", and {counted(again, 'case')} of them measured again" if again else ""
    seconds = sum(each["waited"] for each in waits)
    return [f"{counted(len(waits), 'case')} waited {seconds:.0f} s for a quiet machine{repeated}"]
