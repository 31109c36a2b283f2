"""Views of block-sparse masks: ratios of throughput in one run, and the share of blocks below which sparsity pays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from longca.errors import RequestError
from longca_bench.reports.columns import FULL_SPEED, column
from longca_bench.reports.table import Cell, Head, Mark, Table
from longca_bench.reports.view import Value, View
from longca_bench.reports.words import three_digits, tokens

if TYPE_CHECKING:
    from pandas import DataFrame

    from longca_bench.reports.rows import Rows

__all__ = ["FIRST_PLANS", "PANEL", "contrast", "crossings", "curves", "panel_words"]

#: The columns that two throughputs of one ratio share, unless the ratio is over one of these columns.
_SHARED = ("run_number", "direction", "seqlen", "heads", "head_dim", "dtype", "kernel", "block", "kept", "seed")
#: The columns of a panel of curves.
PANEL = ["direction", "seqlen", "heads", "block"]
_ALL = 0.999  # share from which no block is left out

FIRST_PLANS = View(
    "first plans of a run that took over a second, and ten times as long as the kernel's other plans of that length",
    where={"condition": lambda rows: rows["first_plan"] & (rows["plan_seconds"] > 1)},
    rows=("kernel",),
    values=(
        Value("plan_seconds", "min", "shortest, s", three_digits),
        Value("plan_seconds", "max", "longest, s", three_digits),
    ),
)


def contrast(rows: Rows, pairs: str, by: Sequence[str] | str = ()) -> list[Table]:
    """One throughput over another of the same run, with both in TFLOP/s: medians over draws.

    Args:
        rows: The records.
        pairs: Pairs of conditions such as `kernel=fa4 block=128 / kernel=bsa block=64`; several stand apart by `;`. The
            sides agree in every other column of a case.
        by: The columns of a pair that are told apart.

    Raises:
        RequestError: A pair has no two sides of conditions.
    """
    wanted = [by] if isinstance(by, str) else list(by)
    lines: list[tuple[Cell, ...]] = []
    asked = [_sides(pair) for pair in pairs.split(";")]
    directions = [each for each in ("forward", "backward") if each in set(rows["direction"])]
    for over, under in asked:
        names = [_words(side) for side in (over, under)] if len(asked) > 1 else []
        found = _joined(rows, over, under)
        for key, part in found.groupby(wanted, dropna=False) if wanted else [((), found)]:
            about = [column(name).format(value) for name, value in zip(wanted, key, strict=True)]
            cells = [_ratio(part[part["direction"] == direction]) for direction in directions]
            lines.append((*(Cell(text) for text in (*names, *about)), *cells))
    labels = ["throughput of", "over that of"] if len(asked) > 1 else []
    heads = [Head(text, left=True) for text in labels] + [Head(column(name).head or name) for name in wanted]
    return [Table((*heads, *map(Head, directions)), tuple(lines))] if lines else []


def _sides(pair: str) -> list[dict[str, Any]]:
    sides = [dict(word.split("=", 1) for word in side.split()) for side in pair.split("/") if "=" in side]
    if len(sides) != 2:
        raise RequestError(
            f"{pair.strip()!r} is no pair; write one such as 'kernel=fa4 block=128 / kernel=bsa block=64'"
        )
    return [{name: _read(text) for name, text in side.items()} for side in sides]


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _words(side: dict[str, Any]) -> str:
    return ", ".join(f"blocks of {value}" if name == "block" else str(value) for name, value in side.items())


def _joined(rows: Rows, over: dict[str, Any], under: dict[str, Any]) -> DataFrame:
    """The throughputs of both sides, `tflops_x` and `tflops_y`, case by case."""
    keys = [name for name in _SHARED if name not in over and name not in under]
    keys += [name for name in _SHARED if name in over and over.get(name) == under.get(name)]
    frames = [rows.where(status="ok", strategy=None, **side).frame((*_SHARED, "tflops")) for side in (over, under)]
    return frames[0].merge(frames[1][[*keys, "tflops"]], on=keys)


def _ratio(part: DataFrame) -> Cell:
    if part.empty:
        return Cell("–")
    ratio = (part["tflops_x"] / part["tflops_y"]).median()
    both = " / ".join(three_digits(part[name].median()) for name in ("tflops_x", "tflops_y"))
    return Cell(f"{ratio:.2f} ({both})", float(ratio))


def curves(rows: Rows, base: str = FULL_SPEED) -> DataFrame:
    """Throughput by the share of visible pairs, with the time over that of dense attention in the same run.

    Args:
        rows: The records.
        base: The kernel of dense attention.

    Returns:
        The columns direction, seqlen, heads, block, kernel, density, tflops, time, and full: the throughput of dense
        attention. Panels in which no kernel has two shares are left out.
    """
    shape = ["run_number", "direction", "seqlen", "heads", "head_dim", "dtype"]
    ok = rows.where(status="ok", strategy=None)
    dense = ok.where(kernel=base, pattern="full").frame((*shape, "ms", "tflops"))
    dense = dense.groupby(shape)[["ms", "tflops"]].median().rename(columns={"ms": "full_ms", "tflops": "full"})
    sparse = ok.where(lambda found: found["block"].notna()).frame(
        (*shape, "block", "kernel", "density", "ms", "tflops")
    )
    found = sparse.merge(dense.reset_index(), on=shape)
    found["time"] = found["ms"] / found["full_ms"]
    found["place"] = (found["direction"] != "forward").astype(int)
    keys = ["place", *PANEL, "kernel", "density"]
    points = found.groupby(keys)[["tflops", "time", "full"]].median().reset_index()
    most = points.groupby([*PANEL, "kernel"])["density"].transform("count")
    return points[most.groupby([points[name] for name in PANEL]).transform("max") > 1]


def crossings(rows: Rows, base: str = FULL_SPEED) -> list[Table]:
    """The share of blocks below which each kernel takes less time than dense attention, by direction and blocks.

    Args:
        rows: The records.
        base: The kernel of dense attention.
    """
    found = curves(rows, base)
    panels = list(dict.fromkeys(found[PANEL].itertuples(index=False, name=None)))
    if not panels:
        return []
    kernels = list(dict.fromkeys(found["kernel"]))
    cells = {key: crossing(part) for key, part in found.groupby([*PANEL, "kernel"], sort=False)}
    lines = tuple(
        (Cell(panel_words(panel)), *(Cell(cells.get((*panel, kernel), "")) for kernel in kernels), _reach(found, panel))
        for panel in panels
    )
    heads = Head("on", left=True), *(Head(kernel, code_head=True) for kernel in kernels), Head("measured")
    return [Table(heads, lines)]


def panel_words(panel: tuple[Any, ...]) -> str:
    """The name of a panel: its direction, length, heads and blocks."""
    direction, seqlen, heads, block = panel
    return f"{direction}, {tokens(seqlen)}, {heads}, blocks of {block:.0f}"


def crossing(curve: DataFrame) -> str:
    """The share below which a kernel takes less time than dense attention; linear between measured shares."""
    points = list(curve.sort_values("density")[["density", "time"]].itertuples(index=False, name=None))
    if points[0][1] >= 1:
        return f"not from {points[0][0]:.0%} on"
    for (low, before), (high, after) in pairwise(points):
        if after >= 1:
            return f"{low + (1 - before) / (after - before) * (high - low):.0%}"
    return "always" if points[-1][0] >= _ALL else f"above {points[-1][0]:.0%}"


def _reach(found: DataFrame, panel: tuple[Any, ...]) -> Cell:
    shares = found.set_index(PANEL).loc[panel, "density"]
    return Cell(f"{shares.min():.0%} to {shares.max():.0%}", mark=Mark.ASIDE)
