"""Options that several commands share, their values."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from functools import wraps
from importlib import import_module
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from longca.errors import RequestError, UnknownNameError
from longca.parsing import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from longca.manifests import Device
    from longca.manifests.problem import Direction
    from longca.plugins import Registry

__all__ = [
    "HEAD_DIM",
    "WHICH",
    "AsJson",
    "Command",
    "DeviceName",
    "DirectionName",
    "Heads",
    "Kernels",
    "NoPlugin",
    "Pattern",
    "Strategies",
    "Timeout",
    "chosen_device",
    "chosen_directions",
    "count_workers",
    "flag",
    "kernels",
    "masks",
    "models",
    "open_registry",
    "option",
    "print_json",
    "say_complaints",
    "strategies",
    "takes_options",
]

#: The old names of options, and what they mean.
_OLD_NAMES = {
    "--nproc": ["--gpus"],
    "--ranks": ["--gpus"],
    "--forward": ["--direction", "forward"],
    "--gqa": ["--heads", "64:8"],
    "--mha": ["--heads", "8:8"],
}


class Command(TyperCommand):
    """A command whose options also have their old names, and whose `--recommended` is 3 without a number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses arguments, with the new name for each old one, and with the number that is left out."""
        known = {name for each in self.params for name in each.opts}
        given: list[str] = []
        for text, following in zip_longest(args, args[1:], fillvalue=""):
            name, equals, value = text.partition("=")
            new, *values = _OLD_NAMES.get(name, [name])
            given += [new + equals + value, *values] if new in known else [text]
            if text == "--recommended" and not following.lstrip("-").isdecimal():
                given.append("3")
        return super().parse_args(ctx, given)


def option(
    help: str, metavar: str | None = None, *names: str, read: Any = None, complete: Any = None, **settings: Any
) -> Any:
    """An option whose text a function may read, and which a shell may complete."""

    def parser(text: Any) -> Any:
        try:
            return read(str(text))
        except RequestError as error:
            raise typer.BadParameter(str(error)) from None

    settings |= {"parser": read and parser, "autocompletion": complete}
    return typer.Option(*names, help=help, metavar="NAME" if complete else metavar, **settings)


def _completed(module: str, names: Callable[[Any], Iterable[str]]) -> Callable[[str], list[str]]:
    """A function that completes a text in a shell by names that a module knows."""
    return lambda incomplete: [name for name in names(import_module(module)) if name.startswith(incomplete)]


_devices = _completed("longca_advice.devices", lambda devices: (*devices.DEVICES, "cuda", "cpu"))
kernels = _completed("longca.plugins", lambda plugins: plugins.registry().kernels)
masks = _completed("longca.masks", lambda masks: masks.PATTERNS)
models = _completed("longca_advice.models", lambda models: models.known_models())
strategies = _completed("longca.plugins", lambda plugins: plugins.registry().strategies)

#: The help of a mask's name.
WHICH = "A pattern such as causal_document, patterns joined by &, or a file of a mask (.npy, .pt, .json, .jsonl)."
Pattern = Annotated[str | None, typer.Argument(help=WHICH, autocompletion=masks)]
Kernels = Annotated[
    list[str] | None, option("Only this kernel, or this pair such as fa3+fa4. Repeatable.", complete=kernels)
]
Strategies = Annotated[list[str] | None, option("Only this strategy. Repeatable.", complete=strategies)]
Heads = Annotated[str, option("Query heads and KV heads, such as 64:8.", "HQ:HKV")]
#: The help of a head dimension.
HEAD_DIM = "Head dimension, such as 128, or 192:128 with another one of v."
DirectionName = Annotated[str, option("forward, backward, or training for both.", "NAME")]
DeviceName = Annotated[
    str | None,
    option("A GPU such as h200 or H100-PCIe, cuda:9.0, cuda or cpu. (default: this machine's)", complete=_devices),
]
Timeout = Annotated[float, option("Seconds that a case may take, or a time such as 10min.", "TIME", read=parse_seconds)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NoPlugin = Annotated[list[str] | None, option("Leave out this plugin or distribution. Repeatable.", "NAME")]


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
    """The directions of --direction, of which `training` is both, or an empty tuple without the option."""
    from longca.manifests.problem import Direction

    if direction is None:
        return ()
    if direction == "training":
        return tuple(Direction)
    if direction not in list(Direction):
        raise UnknownNameError("direction", direction, [*Direction, "training"])
    return (Direction(direction),)


def chosen_device(name: str | None) -> Device:
    """The device of --device for a command that computes, on this machine's GPU or on the CPU."""
    from longca.manifests import Device
    from longca.manifests.devices import current_device
    from longca_advice.devices import named_device

    here = current_device()
    if name in (None, here.kind):
        return here
    if name == "cpu":
        return Device("cpu")
    if name != "cuda" and (asked := named_device(name)).capability == here.capability and asked.name in ("", here.name):
        return here
    raise RequestError(f"this machine has no {name}, only {here}. Leave out --device, or take --device cpu")


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
