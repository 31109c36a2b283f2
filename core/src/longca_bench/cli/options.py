"""Options that several commands share, and what they mean."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

if TYPE_CHECKING:
    from longca.manifests import Device
    from longca.manifests.problem import Direction
    from longca.plugins import Registry

__all__ = [
    "AsJson",
    "NoPlugin",
    "chosen_device",
    "chosen_directions",
    "count_workers",
    "open_registry",
    "print_json",
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NoPlugin = Annotated[
    list[str] | None,
    typer.Option("--no-plugin", metavar="NAME", help="Leave out a plugin or a distribution; repeatable."),
]


def open_registry(context: typer.Context, no_plugin: list[str] | None = None, *, reprobe: bool = False) -> Registry:
    """The registry without the plugins that --no-plugin names, before or after the command.

    Args:
        context: The command's context.
        no_plugin: What the command was given as --no-plugin.
        reprobe: Whether to ask plugins again how they fare when imported.
    """
    from longca.plugins import registry

    return registry((context.obj or frozenset()) | frozenset(no_plugin or ()), reprobe=reprobe)


def print_json(value: Any) -> None:
    """Prints plain data as JSON: ASCII alone, so that any terminal and any pipe takes it."""
    typer.echo(json.dumps(value, indent=2))


def chosen_directions(direction: str | None) -> tuple[Direction, ...]:
    """The directions a command was asked for; empty for all.

    Raises:
        UnknownNameError: Neither forward nor backward.
    """
    from longca.errors import UnknownNameError
    from longca.manifests.problem import Direction

    if direction is None:
        return ()
    for known in get_args(Direction):
        if direction == known:
            return (known,)
    raise UnknownNameError("direction", direction, get_args(Direction))


def chosen_device(name: str | None) -> Device:
    """The device that a command runs on: this machine's GPU where it has one, unless asked otherwise.

    Raises:
        RequestError: A device that is not here.
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
    raise RequestError(f"no CUDA device is here; this machine has {here}. Take --device cpu")


def count_workers(device: Device) -> int:
    """One worker a visible GPU; one on a CPU, whose cores a kernel takes all of."""
    if device.kind == "cpu":
        return 1
    import torch

    return max(1, torch.cuda.device_count())
