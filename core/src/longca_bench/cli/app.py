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
import signal
import sys
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any, TextIO, cast

import typer
from typer.core import TyperGroup

from longca.errors import LongCAError, MissingPackageError, PluginError, RecordError, VerificationError
from longca.plain_text import plain_text
from longca_bench.cli.options import Command, NoPlugin

__all__ = ["COMMANDS", "app", "main"]

#: The commands. Each has a module and a function of its name.
COMMANDS = (
    "recommend",
    "list-capabilities",
    "plugins",
    "doctor",
    "run",
    "verify",
    "report",
    "compare",
    "show-mask",
    "show-layout",
    "make-lengths",
    "new-plugin",
)


class _Commands(TyperGroup):
    """The group of commands. It imports a command's module when the command is named, or shown in the help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = dict.fromkeys(COMMANDS, cast(Any, None))  # names, for the help and for suggestions

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command of the group, or None. A paragraph's lines are joined, and the terminal breaks them anew."""
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        module = import_module(f"longca_bench.cli.{name}")
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(cmd_name, cls=Command)(getattr(module, name))
        command = typer.main.get_command(alone)
        _without_values(command.get_params(ctx))
        command.help = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
        return command

    def get_params(self, ctx: Any) -> Any:
        """The group's own options."""
        return _without_values(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Runs the chosen command. A message about `--mask`, an option of `run`, names its place elsewhere."""
        try:
            return super().invoke(ctx)
        except Exception as raised:
            wrong: Any = raised  # of the copy of Click that this version of Typer has
            if getattr(wrong, "option_name", None) == "--mask" and ctx.invoked_subcommand in ("recommend", "show-mask"):
                wrong.message = f"no option --mask here; the mask comes first: longca {ctx.invoked_subcommand} causal"
                wrong.possibilities = None
            raise


def _without_values(parameters: Any) -> Any:
    """Parameters whose flags have no word for a value in the help, because they take none."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


app = typer.Typer(
    name="longca",
    help="Which attention kernel and context-parallel strategy is valid, correct and fastest for your mask and GPUs.",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    if "RANK" not in os.environ:  # torchrun ends its ranks by SIGTERM. Elsewhere it is Ctrl-C: a run says how to go on
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except LongCAError as error:
        print(f"error: {plain_text(error, 10_000)}", file=sys.stderr)  # noqa: T201 - rich would obey markup in names
        sys.exit(1 if isinstance(error, MissingPackageError | PluginError | RecordError | VerificationError) else 2)
    except ModuleNotFoundError as error:
        from longca.manifests.installs import absent

        if (lacking := absent(error, "this command")) is None:
            raise
        print(f"error: {lacking}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        # The reader of a pipe has closed it, or a disk is full. Python's flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)
