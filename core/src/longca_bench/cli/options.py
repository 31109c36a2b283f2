"""Options that several commands share, their values, and the help texts of all commands."""

from __future__ import annotations

import inspect
import json
import math
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

from longca.plain_text import plain_text

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
    "finite",
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

#: The word for a value in the help, by the value's type. A flag has no value.
_WORDS = {"bool": "", "int": "N", "int range": "N", "float": "X", "float range": "X", "path": "PATH", "Path": "PATH"}


def finite(value: float | None) -> float | None:
    """The callback of an option with a number. NaN is within every range, and is refused here.

    Raises:
        BadParameter: The value is NaN.
    """
    if value is not None and math.isnan(value):
        raise typer.BadParameter(f"{value} is no number")
    return value


class Commands(TyperGroup):
    """A group of commands whose help has a word for each option's value, such as `N`, instead of `<int range>`.

    A message about a wrong option repeats no value of thousands of characters. `--mask`, an option of `longca run`, is
    refused with the place of the mask where it is an argument.
    """

    def invoke(self, ctx: Any) -> Any:
        """Runs the chosen command."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if getattr(error.param, "name", None) == "head_dim":
                error.message = (
                    "LongCA has no attention yet whose v has another head dim than q and k; give one integer"
                )
            error.message = plain_text(error.message, 500)
            raise
        except Exception as raised:
            wrong: Any = raised  # of the copy of Click that this version of Typer has
            if getattr(wrong, "option_name", None) == "--mask":
                name = ctx.invoked_subcommand
                asked = [each.name for each in self.get_command(ctx, name).params]
                if "pattern" in asked:
                    wrong.message = f"no option --mask here; the mask comes first: longca {name} causal"
                    wrong.possibilities = None
            raise

    def get_params(self, ctx: Any) -> Any:
        """The group's own options."""
        return _with_words(super().get_params(ctx), ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command of the group, or None."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _with_words(command.get_params(ctx), ctx)
            # A paragraph's lines are joined, and the terminal breaks them anew.
            command.help = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
        return command


def _with_words(parameters: Sequence[Any], context: Any) -> Sequence[Any]:
    """Options with words for values without a metavar, and arguments without a type beside their name."""
    for parameter in parameters:
        if not hasattr(parameter, "display_type_rich"):  # older versions of Typer show words by themselves
            continue
        parameter._get_number_range_help_str = _nothing  # a number beyond its range is refused with a message
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = _nothing
        elif parameter.metavar is None:
            shown = parameter.display_type(context).strip("<>").removeprefix("list[").removesuffix("]")
            parameter.metavar = _WORDS.get(shown, "TEXT")
    return parameters


def _nothing(**about: Any) -> str:
    return ""


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
