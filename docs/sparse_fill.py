"""What variable blocks cost bsa: throughput beside that on uniform blocks, and how much of the difference is fill.

Fill is the share of the pairs a kernel computes that are visible. Throughput over fill is throughput on what is
computed; where that is as high as on uniform blocks, fill explains the difference.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from measured_page import table
from sparse_tables import DIRECTIONS, KEPT, SEQLEN, Side, ratio

from longca_bench.reports.run_cells import three_digits
from longca_bench.reports.run_source import Run

UNIFORM, WANTED = 128, 0.75
_HEADS = ("64:8", "64:64")
#: The kernels' names in words.
_KERNELS = {"forward": "forward", "dkdv": "dk and dv", "dq": "dq"}

Row = dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """Variable blocks beside uniform ones, in one direction with one kind of heads.

    Attributes:
        name: Direction and heads, in words.
        ratio: Throughput on variable blocks over that on uniform ones.
        rates: Throughput on variable and on uniform blocks.
        fills: The fill of variable and of uniform blocks.
    """

    name: tuple[str, str]
    ratio: float
    rates: tuple[float, float]
    fills: tuple[float, float]

    @property
    def words(self) -> str:
        """Its name in a sentence."""
        heads, direction = self.name
        return f"{direction} with {heads}"

    @property
    def by_fill(self) -> float:
        """The ratio that fill alone would give."""
        return self.fills[0] / self.fills[1]

    @property
    def cells(self) -> list[str]:
        """Its row of the table."""
        computed = (rate / fill for rate, fill in zip(self.rates, self.fills, strict=True))
        shares = f"{self.ratio:.2f}", f"{self.by_fill:.3f}", f"{self.ratio / self.by_fill:.2f}"
        return [*self.name, *map(three_digits, self.rates), *map(three_digits, computed), *shares]


def by_direction(runs: Sequence[Run], rows: Sequence[Row]) -> str:
    """Throughput on variable over that on uniform blocks, as a product of fill and of what fill does not explain."""
    found = [_compared(runs, rows, heads, direction) for heads in _HEADS for direction in DIRECTIONS]
    compared = [comparison for comparison in found if comparison]
    columns = ["heads", "direction", "variable", "uniform", "variable, all pairs", "uniform, all pairs"]
    body = [comparison.cells for comparison in compared]
    return f"{table([*columns, 'ratio', 'by fill', 'rest'], body, left=(0, 1))}\n\n{_verdict(compared)}"


def _compared(runs: Sequence[Run], rows: Sequence[Row], heads: str, direction: str) -> Comparison | None:
    sides = Side("bsa", None, heads), Side("bsa", UNIFORM, heads)
    share = ratio(runs, *sides, direction)
    filled = [row["fill"][direction] for side in sides if (row := _fill_of(rows, side.block, heads))]
    if share is None or len(filled) < len(sides):
        return None
    rates = [median(rate for run in runs if (rate := side.tflops(run, direction))) for side in sides]
    return Comparison((heads, direction), share, (rates[0], rates[1]), (filled[0], filled[1]))


def _fill_of(rows: Iterable[Row], block: int | None, heads: str) -> Row | None:
    """The record of a mask's fill; None where it was not counted."""
    asked = SEQLEN, block, KEPT, heads
    return next((row for row in rows if _key(row) == asked), None)


def _key(row: Row) -> tuple[object, ...]:
    factors = row["factors"]
    return row["seqlen"], factors.get("block"), factors["kept"], f"{row['heads_q']}:{row['heads_kv']}"


def _verdict(compared: Sequence[Comparison]) -> str:
    """Where WANTED of the throughput on uniform blocks is reached, where not, and where it could not be."""
    short = [comparison for comparison in compared if comparison.ratio < WANTED]
    reached = [comparison for comparison in compared if comparison.ratio >= WANTED]
    said = f"{WANTED} of the throughput on uniform blocks was wanted. It is reached {_listed(reached)}"
    said += f", and not reached {_listed(short)}." if short else "."
    if below := [comparison for comparison in short if comparison.by_fill < WANTED]:
        said += (
            f" With tiles of these sizes it is out of reach {_listed(below)}: fill alone is below {WANTED} there, so"
            " that a kernel that computes each pair as fast as on uniform blocks would fall short too."
        )
    return said


def _listed(compared: Iterable[Comparison]) -> str:
    words = [comparison.words for comparison in compared]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words) or "nowhere"


def tuned_times(folder: Path) -> dict[str, tuple[float, float]]:
    """Milliseconds of each kernel with 64:8 heads in its configuration in use: on uniform blocks and on variable ones.

    Args:
        folder: The records of tuning. Of dk and dv `launches.json` has what a launch for each query head takes, as the
            kernel is launched on long inputs; the other records are of all heads in one launch.
    """
    found: dict[str, tuple[float, float]] = {}
    files = [folder / name for name in ("tune-gqa128.json", "tune-var.json")]
    if all(file.exists() for file in files):
        uniform, variable = (json.loads(file.read_text(encoding="utf-8"))["results"] for file in files)
        found = {kernel: (_in_use(uniform, kernel), _in_use(variable, kernel)) for kernel in ("forward", "dq")}
    launches = folder / "launches.json"
    if launches.exists():
        rows = json.loads(launches.read_text(encoding="utf-8"))["rows"]
        single = [row for row in rows if row["heads"] == [64, 8] and row["heads_a_launch"] == 1]
        uniform, variable = ([r["dkdv_ms"] for r in single if r[name] == UNIFORM] for name in ("block", "variable"))
        if uniform and variable:
            found["dkdv"] = uniform[0], variable[0]
    return found


def _in_use(results: Iterable[Row], kernel: str) -> float:
    time: float = next(row["time_ms"] for row in results if row["kernel"] == kernel)  # the one in use comes first
    return time


def paths(rows: Sequence[Row]) -> str:
    """What each kernel's path for blocks of any sizes costs, and what tiles do that such blocks do not fill."""
    body = [
        [
            ":".join(map(str, row["heads"])),
            _KERNELS[row["kernel"]],
            *(f"{factor:.2f}" for factor in (row["path"], row["tiles"], row["path"] * row["tiles"])),
        ]
        for row in rows
    ]
    return table(["heads", "kernel", "path", "tiles", "both"], body, left=(0, 1))


def by_kernel(rows: Sequence[Row], times: dict[str, tuple[float, float]]) -> str:
    """Each kernel's fill on variable blocks by heads, and with 64:8 heads its time over that on uniform blocks."""
    body = []
    for heads in _HEADS:
        variable, uniform = (_fill_of(rows, block, heads) for block in (None, UNIFORM))
        if variable is None or uniform is None:
            continue
        for kernel, name in _KERNELS.items():
            more = variable["computed"][kernel] / variable["visible"]
            more /= uniform["computed"][kernel] / uniform["visible"]
            tiles = (" × ".join(map(str, row["tiles"][kernel])) for row in (uniform, variable))
            measured = _time_cells(times.get(kernel) if heads == _HEADS[0] else None, more)
            body.append([heads, name, *tiles, f"{variable['fill'][kernel]:.2f}", f"{more:.2f}", *measured])
    counted = ["heads", "kernel", "tile, uniform", "tile, variable", "fill", "pairs computed"]
    return table([*counted, "ms, uniform", "ms, variable", "time", "rest"], body, left=(0, 1))


def _time_cells(pair: tuple[float, float] | None, more: float) -> list[str]:
    if pair is None:
        return ["–"] * 4
    uniform, variable = pair
    return [
        three_digits(uniform), three_digits(variable), f"{variable / uniform:.2f}", f"{variable / uniform / more:.2f}"
    ]  # fmt: skip
