"""The progress of a run, and how long it will take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from longca_bench.measuring.records import Record
    from longca_bench.suites.duration import Duration

__all__ = ["Progress", "say_duration"]


class Progress:
    """A bar on a terminal, lines elsewhere, and nothing if JSON is printed.

    A line is printed for each case that was measured or that failed. Unsupported cases are only counted.

    Args:
        total: Number of cases to come.
        quiet: Whether to show nothing.
    """

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
        """Shows a finished case.

        Args:
            record: The record of the case.
        """
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


def say_duration(found: Duration, *, err: bool) -> None:
    """Says how long a run will take.

    Args:
        found: The predicted duration.
        err: Whether to say it on stderr, and only if it is predicted.
    """
    from longca_bench.reports.text import printable

    if found.sentence and not (err and found.seconds is None):
        typer.echo(printable(found.sentence), err=err)
