"""`longca run`: a suite, verified and measured."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    from longca.bench.cases import Case
    from longca.bench.records import Record
    from longca.bench.run_folder import RunFolder
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
    from longca.bench.cases import Selection, absent, expand
    from longca.bench.suite import load_suite

    registry = open_registry(context, no_plugin)
    loaded = load_suite(suite)
    where = chosen_device(device)
    chosen = ab or tuple(kernel or ())
    selection = Selection(
        kernels=chosen,
        patterns=tuple(mask or ()),
        seqlens=tuple(seqlen or ()),
        directions=chosen_directions(direction),
        heads=tuple(heads or ()),
        seeds=tuple(seed or ()),
    )
    cases = expand(loaded, registry.kernels, selection)
    for name, advice in absent(loaded, registry.kernels, selection).items():
        typer.echo(f"{name} is left out: {advice}", err=True)
    if dry_run:
        _print_plan(registry, cases, where, as_json)
        return
    from longca.bench.environment import environment
    from longca.bench.run_folder import RunFolder
    from longca.bench.runner import Options, failed, run_cases

    path = _folder(out, loaded.name, resume)
    folder = RunFolder(path, environment(registry, loaded, where), resume=resume)
    left = [case for case in cases if case.digest(str(where)) not in folder.done]
    options = Options(
        deadline=timeout,
        memory=None if memory is None else int(memory * 2**30),
        fail_fast=fail_fast,
        disabled=frozenset(context.obj or ()) | frozenset(no_plugin or ()),
        workers=count_workers(where),
        interleave=ab is not None,
    )
    _say_resumed(folder, len(cases) - len(left), quiet=as_json)
    progress = _Progress(len(left), quiet=as_json)

    def keep(record: Record) -> None:
        folder.append(record)
        progress.advance(record)

    try:
        new = run_cases(loaded, left, where, registry, keep, options)
    finally:
        folder.close()
        progress.stop()
    records = list({record.case: record for record in (*folder.earlier, *new)}.values())
    if as_json:
        print_json([record.model_dump(mode="json") for record in records])
    else:
        _print_records(records, folder.records, ab)
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


def _print_plan(registry: Registry, cases: list[Case], device: Device, as_json: bool) -> None:
    """What would be measured, and what would not and why."""
    rows: list[dict[str, Any]] = []
    for case in cases:
        verdict = registry.resolve(case.kernel, case.problem(device))
        rows.append(
            {
                "kernel": case.kernel,
                "pattern": case.pattern,
                "factors": dict(case.factors),
                "seqlen": case.seqlen,
                "heads": f"{case.heads_q}:{case.heads_kv}",
                "direction": case.direction,
                "form": str(verdict.offer.form) if verdict.offer else None,
                "reasons": [str(reason) for reason in verdict.reasons],
            }
        )
    if as_json:
        print_json(rows)
        return
    from longca.reports.run_cells import mask_name
    from longca.reports.text import safe

    names = [mask_name(row["pattern"], row["factors"]) for row in rows]
    wide = max(24, *map(len, names))
    for row, name in zip(rows, names, strict=True):
        outcome = row["form"] or "unsupported: " + " ".join(row["reasons"])
        about = f"{row['kernel']:12} {name:{wide}} {row['seqlen']:>8} {row['heads']:>6} {row['direction']:9}"
        typer.echo(safe(f"{about} {outcome}"))


class _Progress:
    """A bar on a terminal, a line for each case elsewhere, nothing where JSON is printed."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(stderr=True, highlight=False)
        self._quiet, self._total, self._done = quiet, total, 0
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.description}"),
        )
        self._bar = Progress(*columns, console=self._console, transient=True)
        self._task = self._bar.add_task("", total=total)
        self._shown = not quiet and self._console.is_terminal
        if self._shown:
            self._bar.start()

    def advance(self, record: Record) -> None:
        """Shows that a case is done."""
        from longca.reports.run_cells import mask_name
        from longca.reports.text import safe

        self._done += 1
        what = f"{record.kernel} {mask_name(record.pattern, record.factors)} {record.seqlen} {record.direction}"
        self._bar.update(self._task, advance=1, description=safe(what))
        if not self._quiet and not self._shown:
            time = f"{record.median * 1e3:.3g} ms" if record.median is not None else ""
            typer.echo(f"[{self._done}/{self._total}] {safe(what)}: {record.status} {time}".rstrip(), err=True)

    def stop(self) -> None:
        """Clears the bar."""
        if self._shown:
            self._bar.stop()
