"""Charts of a run: throughput by sequence length, one chart for each mask and direction, one line for each kernel.

matplotlib is loaded when the first chart is drawn, and nothing of its global state is touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from longca_bench.reports.mask_text import factor_words

if TYPE_CHECKING:
    from longca_bench.measuring.records import Record

__all__ = ["Chart", "chart_files", "charts", "draw_charts"]

#: The fields that a chart's records have in common. The first two name its file, and the others do if they vary.
_ABOUT = ("pattern", "direction", "heads_q", "heads_kv", "head_dim", "dtype", "lengths", "seed")
_NAMED, _LETTERS = 2, {"heads_q": "q", "heads_kv": "kv", "head_dim": "d", "seed": "seed"}
_LONGEST = 100  # characters of a file's name


@dataclass(frozen=True)
class Chart:
    """The content of one chart.

    Attributes:
        about: The values of pattern, direction, shape and factors that its records share.
        records: The records in the order of measuring. No kernel has two at one length.
    """

    about: tuple[str, ...]
    records: tuple[Record, ...]


def charts(records: Iterable[Record]) -> list[Chart]:
    """The charts of kernels on one device. Different masks of one pattern and length have charts of their own."""
    found: dict[tuple[tuple[str, ...], int], list[Record]] = {}
    masks: dict[tuple[object, ...], list[str]] = {}
    for record in (record for record in records if record.strategy is None):
        about = (*(str(getattr(record, name)) for name in _ABOUT), _factors(record))
        digests = masks.setdefault((about, record.seqlen), [])
        if record.mask_digest not in digests:
            digests.append(record.mask_digest)
        found.setdefault((about, digests.index(record.mask_digest)), []).append(record)
    return [Chart(about, _last(of_chart)) for (about, _), of_chart in found.items()]


def chart_files(found: Sequence[Chart]) -> list[str]:
    """A name for each chart's file, of letters, digits, dots, dashes and underscores alone, no name twice."""
    about = (*_ABOUT, "factors")
    varying = [index for index in range(_NAMED, len(about)) if len({chart.about[index] for chart in found}) > 1]
    names: list[str] = []
    for chart in found:
        shape = (f"{_LETTERS.get(about[index], '')}{chart.about[index]}" for index in varying if chart.about[index])
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", "-".join((*chart.about[:_NAMED], *shape)))[:_LONGEST].strip(".-")
        name, number = plain, 1
        while name.lower() in names:
            number += 1
            name = f"{plain}-{number}"
        names.append(name.lower())
    return [f"{name}.png" for name in names]


def draw_charts(records: Sequence[Record], folder: Path, *, dpi: float = 200) -> list[Path]:
    """Draws every chart of some records. A kernel has the same colour and marker in all of them.

    Args:
        records: The records.
        folder: An existing folder for the files.
        dpi: Dots an inch.

    Returns:
        The files.
    """
    from longca_bench.reports.chart_picture import draw_chart

    kernels = list(dict.fromkeys(record.kernel for record in records))
    found = charts(records)
    paths = [folder / name for name in chart_files(found)]
    for chart, path in zip(found, paths, strict=True):
        draw_chart(chart.records, kernels, path, dpi=dpi)
    return paths


def _factors(record: Record) -> str:
    return " ".join(factor_words(record.factors)).replace("%", "percent")


def _last(records: Iterable[Record]) -> tuple[Record, ...]:
    """The last record of each case."""
    return tuple({(record.kernel, record.seqlen): record for record in records}.values())
