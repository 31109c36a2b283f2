"""Options that several commands share, their values."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from longca.errors import RequestError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from longca.manifests import Device
    from longca.manifests.problem import Direction
    from longca.plugins import Registry

__all__ = [
    "AsJson",
    "NoPlugin",
    "chosen_device",
    "chosen_directions",
    "count_workers",
    "flag",
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


def takes_options(
    kind: type[Any], parameter: str, without: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator for commands with a parameter for several options: the fields of a dataclass take its place."""
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
    """The registry without the plugins of --no-plugin, which may stand before or after the command."""
    from longca.plugins import registry

    return registry((context.obj or frozenset()) | frozenset(no_plugin or ()))


def flag(name: str) -> str:
    """The option of a parameter's name, such as `--head-dim`."""
    return f"--{name.replace('_', '-')}"


def print_json(value: Any) -> None:
    """Prints plain data as JSON in ASCII, for any terminal and any pipe."""
    typer.echo(json.dumps(value, indent=2))


def chosen_directions(direction: str | None) -> tuple[Direction, ...]:
    """The directions of --direction, or an empty tuple for all."""
    from longca.manifests.problem import Direction

    if direction is None:
        return ()
    if direction not in list(Direction):
        raise UnknownNameError("direction", direction, list(Direction))
    return (Direction(direction),)


def chosen_device(name: str | None) -> Device:
    """The device of --device. Without the option it is this machine's GPU, or the CPU without a GPU."""
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
    """Says on stderr which lines of runs are wrong or missing, after the results. The exit code is then 1."""
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
