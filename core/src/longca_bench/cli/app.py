"""The `longca` command: its commands, its errors and its exit codes.

| code | meaning |
|---|---|
| 0 | all is well |
| 1 | something failed, or nothing was done |
| 2 | the request was wrong, and the message has the remedy |
| 130 | interrupted |
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from typing import Annotated, Any, TextIO, cast

import typer

from longca.errors import LongCAError, PluginError, RecordError, VerificationError
from longca.plain_text import plain_text
from longca_bench.cli import (
    capabilities,
    compare,
    doctor,
    make_lengths,
    new_plugin,
    plugins,
    recommend,
    report,
    run,
    show_layout,
    show_mask,
    verify,
)
from longca_bench.cli.options import Commands, NoPlugin
from longca_bench.cli.run_advised import RunCommand

__all__ = ["app", "main"]

app = typer.Typer(
    name="longca",
    help="Which attention kernel and context-parallel strategy is valid, correct and fastest for your mask and GPUs.",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("recommend")(recommend.recommend)
app.command("list-capabilities")(capabilities.list_capabilities)
app.command("plugins")(plugins.plugins)
app.command("doctor")(doctor.doctor)
app.command("run", cls=RunCommand)(run.run)
app.command("verify")(verify.verify)
app.command("report")(report.report)
app.command("compare")(compare.compare)
app.command("show-mask")(show_mask.show_mask)
app.command("show-layout")(show_layout.show_layout)
app.command("make-lengths")(make_lengths.make_lengths)
app.command("new-plugin")(new_plugin.new_plugin)


def _print_version(wanted: bool) -> None:
    if wanted:
        import longca

        typer.echo(f"longca {longca.__version__}")
        raise typer.Exit


@app.callback()
def _longca(
    context: typer.Context,
    no_plugin: NoPlugin = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    context.obj = frozenset(no_plugin or ())


class _LossyStream:
    """A stream that drops what it cannot write, so that a full disk for messages does not end a run."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes a text, if it can be written."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Writes what is buffered, if it can be written."""
        with suppress(OSError):
            self._stream.flush()


def main() -> None:
    """Runs the command line and exits. A user's mistake is one line on standard error without a traceback."""
    # A character that the terminal cannot show must not stop a command.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if sys.stderr is not None:  # it may be closed
        sys.stderr = cast(TextIO, _LossyStream(sys.stderr))
    try:
        app()
    except LongCAError as error:
        print(f"error: {plain_text(error, 10_000)}", file=sys.stderr)  # noqa: T201 - rich would obey markup in names
        sys.exit(1 if isinstance(error, PluginError | RecordError | VerificationError) else 2)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        # The reader of a pipe has closed it, or a disk is full. Python's flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)
