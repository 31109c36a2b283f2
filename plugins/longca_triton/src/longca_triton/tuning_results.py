"""The results of tuning, and their table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from longca_triton.config import Config

__all__ = ["Result", "table"]


@dataclass
class Result:
    """The result of one configuration of a launch under one mask.

    Attributes:
        kernel: `forward`, `dkdv` or `dq`.
        config: The configuration.
        mask: The mask's name.
        tflops: TFLOP/s, or 0 without a measurement.
        time_ms: Median milliseconds, or NaN without a measurement.
        note: The problem with the configuration, or an empty string.
    """

    kernel: str
    config: Config
    mask: str
    tflops: float = 0.0
    time_ms: float = math.nan
    note: str = ""


def table(found: Sequence[Result]) -> str:
    """One table a launch: TFLOP/s and milliseconds under each mask, best first by the geometric mean of TFLOP/s.

    Args:
        found: The results. Each launch begins with the configuration in use.
    """
    return "\n".join(
        _table([result for result in found if result.kernel == kernel])
        for kernel in dict.fromkeys(result.kernel for result in found)
    )


def _table(found: Sequence[Result]) -> str:
    masks = dict.fromkeys(result.mask for result in found)
    rows: dict[Config, list[Result]] = {}
    for result in found:
        rows.setdefault(result.config, []).append(result)
    header = f"\n{found[0].kernel:10}  m    n  warps stages   tma    mean " + " ".join(f"{m[:20]:>20}" for m in masks)
    best_first = sorted(rows.values(), key=lambda row: (any(result.note for result in row), -_mean(row)))
    return "\n".join([header, *(_line(row, row[0].config == found[0].config) for row in best_first)])


def _line(row: Sequence[Result], is_in_use: bool) -> str:
    c = row[0].config
    shape = f"{c.block_m:13} {c.block_n:4} {c.num_warps:6} {c.num_stages:6} {c.tma!s:>5} "
    cells = " ".join(f"{result.tflops:8.0f} {result.time_ms:8.2f} ms" for result in row)
    return f"{shape}{_mean(row):7.0f} {cells}{'  in use' if is_in_use else ''}{_notes(row)}"


def _mean(row: Sequence[Result]) -> float:
    rates = [result.tflops for result in row if result.tflops > 0]
    return statistics.geometric_mean(rates) if rates else 0.0


def _notes(row: Sequence[Result]) -> str:
    """The problems, each with its masks unless all masks have it."""
    notes: dict[str, list[str]] = {}
    for result in row:
        if result.note:
            notes.setdefault(result.note, []).append(result.mask)
    return "".join(f"  {note}" if len(m) == len(row) else f"  {', '.join(m)}: {note}" for note, m in notes.items())
