"""Options that several commands share, their values, and the help texts of all commands."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from longca.manifests import Device
    from longca.manifests.problem import Direction
    from longca.plugins import Registry

__all__ = [
    "AsJson",
    "Commands",
    "NoPlugin",
    "chosen_device",
    "chosen_directions",
    "count_workers",
    "open_registry",
    "print_json",
    "say_complaints",
    "takes_options",
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NoPlugin = Annotated[
    list[str] | None,
    typer.Option("--no-plugin", metavar="NAME", help="Leave out this plugin or distribution. Repeatable."),
]


class Commands(TyperGroup):
    """A group of commands. `--mask`, an option of `longca run`, is refused with its place where it is an argument."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the chosen command."""
        try:
            return super().invoke(ctx)
        except Exception as raised:
            wrong: Any = raised  # of the copy of Click that this version of Typer has
            if getattr(wrong, "option_name", None) == "--mask" and ctx.invoked_subcommand in ("recommend", "show-mask"):
                wrong.message = f"no option --mask here; the mask comes first: longca {ctx.invoked_subcommand} causal"
                wrong.possibilities = None
            elif getattr(getattr(wrong, "param", None), "name", None) == "head_dim":
                wrong.message = "LongCA has no attention yet whose v has another head dim; give one integer"
            raise

    def get_params(self, ctx: Any) -> Any:
        """The group's own options."""
        return _without_values(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command of the group, or None. A paragraph's lines are joined, and the terminal breaks them anew."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _without_values(command.get_params(ctx))
            command.help = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
        return command


def _without_values(parameters: Any) -> Any:
    """Parameters whose flags have no word for a value in the help, because they take none."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


def takes_options(
    kind: type[Any], parameter: str, without: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator for commands with a parameter for several options: the fields of a dataclass take its place.

    Args:
        kind: The dataclass.
        parameter: The command's parameter, whose value is one of them.
        without: Fields that are no options of the command.
    """
    hints = get_type_hints(kind, include_extras=True)
    options = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name])
        for each in fields(kind)
        if each.name not in without
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def called(**values: Any) -> None:
            given = kind(**{option.name: values.pop(option.name) for option in options})
            command(**values, **{parameter: given})

        signature = inspect.signature(command, eval_str=True)
        own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in signature.parameters.values()]
        place = list(signature.parameters).index(parameter)
        called.__signature__ = signature.replace(parameters=[*own[:place], *options, *own[place + 1 :]])  # type: ignore[attr-defined]
        return called

    return decorate


def open_registry(context: typer.Context, no_plugin: list[str] | None = None) -> Registry:
    """The registry without the plugins of --no-plugin, which may stand before or after the command.

    Args:
        context: The command's context.
        no_plugin: The values of the command's --no-plugin.
    """
    from longca.plugins import registry

    return registry((context.obj or frozenset()) | frozenset(no_plugin or ()))


def print_json(value: Any) -> None:
    """Prints plain data as JSON in ASCII, for any terminal and any pipe."""
    typer.echo(json.dumps(value, indent=2))


def chosen_directions(direction: str | None) -> tuple[Direction, ...]:
    """The directions of --direction, or an empty tuple for all.

    Raises:
        UnknownNameError: The direction is neither forward nor backward.
    """
    from longca.errors import UnknownNameError
    from longca.manifests.problem import Direction

    if direction is None:
        return ()
    if direction not in list(Direction):
        raise UnknownNameError("direction", direction, list(Direction))
    return (Direction(direction),)


def chosen_device(name: str | None) -> Device:
    """The device of --device. Without the option it is this machine's GPU, or the CPU without a GPU.

    Raises:
        RequestError: This machine does not have the device.
        UnknownNameError: The device is neither cpu nor cuda.
    """
    from longca.errors import RequestError, UnknownNameError
    from longca.manifests import Device
    from longca.manifests.devices import current_device

    here = current_device()
    if name in (None, here.kind):
        return here
    if name == "cpu":
        return Device("cpu")
    if name != "cuda":
        raise UnknownNameError("device", str(name), ("cpu", "cuda"))
    raise RequestError(f"this machine has no CUDA device, only {here}. Take --device cpu")


def say_complaints(complaints: Sequence[str]) -> None:
    """Says on stderr which lines of runs are wrong or missing, after the results. The exit code is then 1.

    Raises:
        typer.Exit: There are complaints.
    """
    for complaint in complaints:
        typer.echo(complaint, err=True)
    if complaints:
        raise typer.Exit(1)


def count_workers(device: Device) -> int:
    """One worker for each visible GPU. One worker on a CPU, because a kernel uses all its cores."""
    if device.kind == "cpu":
        return 1
    import torch

    return max(1, torch.cuda.device_count())
