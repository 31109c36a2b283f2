"""A model's recommendation in a terminal: a row for each kind of layers, and the attention of a step."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import TYPE_CHECKING

from longca.plain_text import dims_text, time_text
from longca_bench.reports.recommendation import marked, meanings, remarks, say, say_nothing
from longca_bench.reports.table import Head, table
from longca_bench.reports.terminal import print_tables
from longca_bench.reports.text import by_reason, console, print_problem
from longca_bench.reports.words import counted, memory_unit

if TYPE_CHECKING:
    from rich.console import Console

    from longca_advice.model_recommendation import LayerAnswer, ModelRecommendation

__all__ = ["model_text", "print_model"]


def print_model(console: Console, found: ModelRecommendation) -> None:
    """Prints a question about a model and its answer."""
    print_problem(console, found.text)
    say(console, *_sentences(found), "")
    chosen = [layer.choice for layer in found.layers if layer.choice is not None]
    held, size = memory_unit(max((choice.bytes_per_rank for choice in chosen), default=0))
    heads = [Head("layers"), *(Head(name, left=True) for name in ("mask", "heads", "kernel")), Head("forward", drop=1)]
    heads += [Head("backward", drop=2), Head("all layers"), Head(held, drop=3)]
    print_tables(console, [table(heads, [_row(layer, found.is_shared, size) for layer in found.layers])])
    say(console, *meanings(chosen))
    told = by_reason((_mask(layer), text) for layer in found.layers for text in remarks(layer.found, layer.choice))
    for text, masks in told.items():
        say(console, text if len(masks) == len(found.layers) else f"{text.rstrip('.')} ({', '.join(masks)}).")
    for layer in found.layers:
        if layer.choice is None:
            say_nothing(console, layer.found, _mask(layer))
    commands = dict.fromkeys(" && ".join(line for choice in chosen for line in choice.install).split(" && "))
    lines = [one for one in commands if not any(set(one.split()) < set(other.split()) for other in commands)]
    say(console, *([f"\n    {' && '.join(lines)}"] if any(lines) else []))


def model_text(found: ModelRecommendation) -> str:
    """The question and its answer as plain text."""
    text = StringIO()
    print_model(console(text), found)
    return text.getvalue().rstrip()


def _sentences(found: ModelRecommendation) -> Iterator[str]:
    """The attention of a step, and the layers and moves that it lacks."""
    seconds, lacks = found.seconds, "" if found.seconds is None else "; the sum lacks them"
    if seconds is not None:
        span = f"{time_text(seconds.total)} ({time_text(seconds.low)} to {time_text(seconds.high)})"
        parts = "" if seconds.backward is None else f", backward {time_text(seconds.backward)}"
        layout = next(layer.choice.layout for layer in found.layers if layer.choice is not None)
        how = f", with {layout}" if layout and found.is_shared else ""
        yield f"The attention of a step takes {span}: forward {time_text(seconds.forward)}{parts}{how}."
    for layer in found.layers:
        if layer.choice is None:
            yield f"{counted(layer.kind.count, 'layer')} without a choice ({_mask(layer)}){lacks}."
    if not found.is_shared:
        yield "No strategy, mesh and placement suits all layers; the sum lacks the moves of tokens between layers."
    if found.model.without_attention:
        yield f"{counted(found.model.without_attention, 'layer')} without softmax attention{lacks}."


def _row(layer: LayerAnswer, is_shared: bool, size: float) -> list[str]:
    kind, choice = layer.kind, layer.choice
    heads = f"{kind.heads[0]}:{kind.heads[1]} of {dims_text(kind.head_dim, kind.head_dim_v)}{', sinks' * kind.sinks}"
    about = [str(kind.count), _mask(layer), heads + (f", cap {kind.softcap:g}" if kind.softcap else "")]
    if choice is None:
        why = "not ranked" if layer.found.unmeasured else "does not fit" if layer.found.choices else "refused"
        return [*about, why, "", "", "", ""]
    seconds, how = choice.seconds, "" if is_shared or choice.layout is None else f" with {choice.layout}"
    backward = "" if seconds.backward is None else time_text(seconds.backward)
    times = [time_text(seconds.forward), backward, time_text(kind.count * seconds.total)]
    return [*about, marked(choice) + how, *times, f"{choice.bytes_per_rank * size:.1f}"]


def _mask(layer: LayerAnswer) -> str:
    """The mask of some layers in a few words."""
    return "whole mask" if layer.kind.window is None else f"window of {layer.kind.window:,}"
