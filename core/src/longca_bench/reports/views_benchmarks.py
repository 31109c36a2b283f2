"""Views of benchmarks' files: where a kernel's time goes, layers beside one call, and steps whose mask changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from longca_bench.reports.build import tables_of
from longca_bench.reports.table import Cell, Head, Mark, Table
from longca_bench.reports.view import Value, View
from longca_bench.reports.words import brief_percent, percent_of, three_digits, times

if TYPE_CHECKING:
    from longca_bench.reports.rows import Rows

__all__ = ["ABLATION", "LIST", "STEPS", "TRAINING_STEP", "call_parts", "layers"]

_DIRECTIONS = ("forward", "backward")


def _milliseconds(seconds: float) -> str:
    return three_digits(seconds * 1e3)


def _figure(column: str, head: str, text: Callable[[float], str] | None = times) -> Value:
    return Value(column, "first", head, text)


#: Rows of any benchmark; whoever asks for it gives `rows` and `values`.
LIST = View("rows of a benchmark, with the columns that are asked for", rows=(), values=(), counts=())
#: Rows of `longca_flashattn/benchmarks/ablation.py`.
ABLATION = View(
    "the factor that cut tiles, uneven rows and short rows each add to the time",
    rows=("pattern", "seqlen"),
    apart=("seed",),
    values=(
        _figure("tile_efficiency", "tiles", percent_of),
        *(
            _figure(f"{direction}.{cost}", f"{direction}: {cost}")
            for direction in _DIRECTIONS
            for cost in ("cut", "uneven", "short")
        ),
    ),
    counts=(),
)
#: Rows of `core/benchmarks/changing_masks.py`.
STEPS = View(
    "training steps whose mask changes, with planning in each step and with a plan that is kept",
    tables=("layers", "heads"),
    title="{layers} layers, {heads} heads",
    rows=("pattern", "seqlen", "kernel"),
    values=(
        _figure("steps", "steps", None),
        _figure("step_seconds", "ms a step", _milliseconds),
        _figure("reused_seconds", "plan kept", _milliseconds),
        _figure("plan_seconds", "plan alone", _milliseconds),
        _figure("plan_share", "share", brief_percent),
        _figure("overhead", "overhead", brief_percent),
        _figure("compilations", "compiled", None),
    ),
    failures=True,
)
#: Rows of `core/benchmarks/training_step.py`.
TRAINING_STEP = View(
    "training steps of a model with several kinds of attention: milliseconds, tokens a second and memory",
    rows=("subject",),
    values=(
        _figure("seconds", "ms a step", _milliseconds),
        _figure("low_seconds", "least", _milliseconds),
        _figure("high_seconds", "most", _milliseconds),
        *(_figure(f"{part}_seconds", part, _milliseconds) for part in ("prepare", *_DIRECTIONS, "optimizer")),
        _figure("tokens_per_second", "tokens/s", three_digits),
        _figure("peak_bytes", "GiB", lambda found: three_digits(found / 2**30)),
        _figure("compilations", "compiled", None),
    ),
    best="least",
    among="table",
    failures=True,
)
_LAYERS = View(
    "the time of several calls that are merged, over the time of one call of fa4",
    rows=("pattern", "seqlen"),
    apart=("seed",),
    values=(_figure("layers", "layers", None),),
    counts=(),
)


def layers(rows: Rows, base: str = "fa4") -> list[Table]:
    """The time of several calls that are merged, over the time of one call of another kernel, on the same draw.

    Args:
        rows: Rows of `longca_flashattn/benchmarks/layers.py`.
        base: The other kernel.
    """
    values = list(_LAYERS.values)
    values += [_figure(f"kernels.{base}.{each}_ms", f"{base} {each}, ms", three_digits) for each in _DIRECTIONS]
    kernels = {name.split(".")[1]: None for name in rows.names if name.startswith("kernels.")}
    for kernel in (name for name in kernels if name != base):
        for each in _DIRECTIONS:
            ratio = rows[f"kernels.{kernel}.{each}_ms"] / rows[f"kernels.{base}.{each}_ms"]
            rows = rows.with_column(f"{kernel} {each}", ratio)
            values.append(_figure(f"{kernel} {each}", f"{kernel} {each}"))
    return tables_of(replace(_LAYERS, values=tuple(values)), rows)


def call_parts(rows: Rows) -> list[Table]:
    """The quickest kernel on each mask, and the part of its call that is not in the main launch, the longest one.

    Args:
        rows: Rows of `core/benchmarks/call_parts.py`.
    """
    columns = ("mask", "direction", "kernel", "seconds", "others", "of_limit", "main_of_limit")
    quickest: dict[str, dict[str, tuple[str, float, float, float, float]]] = {}
    for mask, direction, *call in zip(*(rows[name] for name in columns), strict=True):
        found = quickest.setdefault(mask.partition(" of ")[0], {})
        kernel, seconds, *shares = call
        if direction not in found or seconds < found[direction][1]:
            found[direction] = (kernel, seconds, *shares)
    directions = [each for each in _DIRECTIONS if any(each in found for found in quickest.values())]
    heads = [Head("mask", left=True, code=True)]
    lines: list[list[Cell]] = [[Cell(mask)] for mask in quickest]
    for each in directions:
        heads += [
            Head(each, left=True, code=True),
            *map(Head, ("ms", "others, ms", "of limit", "main launch alone")),
        ]
        for line, found in zip(lines, quickest.values(), strict=True):
            if each not in found:
                line += [Cell("", mark=Mark.QUIET)] * 5
                continue
            kernel, seconds, others, share, main = found[each]
            line += [Cell(kernel), Cell(_milliseconds(seconds), seconds), Cell(times(others * 1e3), others)]
            line += [Cell(times(x), x) for x in (share, main)]
    return [Table(tuple(heads), tuple(map(tuple, lines)))]
