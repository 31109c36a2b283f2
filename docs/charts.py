"""Draws the charts of all pages: `python docs/charts.py`, or `--check` to name the stale ones and exit 1.

A chart is stale if the figures that it was drawn from have changed. Its file keeps a digest of them.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import choosing_chart
import timeline_chart
from pandas import DataFrame, Series
from PIL import Image

from longca_bench.reports.chart_by_kept import draw_by_kept
from longca_bench.reports.chart_by_mask import draw_by_mask, points
from longca_bench.reports.chart_by_strategy import draw_by_strategy, strategy_points
from longca_bench.reports.columns import FULL_SPEED
from longca_bench.reports.derived import over_full
from longca_bench.reports.rows import Rows
from longca_bench.reports.views_sparse import curves

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
_KEY = "Description"


@dataclass(frozen=True)
class Chart:
    """A chart of a page.

    Attributes:
        file: Its name in docs/images.
        source: A folder of runs, from the root of the repository.
        where: The rows to show, by `Rows.where`.
        together: Whether the runs are parts of one, which share full attention.
        drawn: The function that draws it, and the function that gives its figures.
    """

    file: str
    source: str
    where: dict[str, Any] = field(default_factory=dict)
    together: bool = False
    drawn: tuple[Callable[..., None], Callable[[Rows], DataFrame]] = (draw_by_mask, points)

    @property
    def rows(self) -> Rows:
        """The rows to show."""
        rows = Rows.read(ROOT / self.source).where(**self.where)
        if not self.together:
            return rows
        return rows.with_column("share_of_limit", over_full(rows, FULL_SPEED, together=True))

    @property
    def digest(self) -> str:
        """16 hex digits of the figures that the chart shows."""
        return hashlib.blake2b(self.drawn[1](self.rows).to_csv(float_format="%.6g").encode(), digest_size=8).hexdigest()

    def draw(self) -> None:
        """Draws the chart."""
        self.drawn[0](self.rows, IMAGES / self.file, metadata={_KEY: self.digest, "Software": ""})

    @property
    def is_stale(self) -> bool:
        """Whether the file is missing, or was drawn from other figures."""
        path = IMAGES / self.file
        if not path.exists():
            return True
        with Image.open(path) as image:
            return image.info.get(_KEY) != self.digest


#: The run of the backward of `bsa` for Hopper by its tokens. Short calls are launched sooner in the newest one.
#: At 128 K four fifths kept are in a run of their own.
_HOPPER = {
    8192: "hopper64_sooner",
    16384: "hopper64_sooner",
    32768: "hopper64",
    65536: "hopper64_64k",
    131072: "hopper64_128k",
}

_KERNELS = ["fa3", "fa4", "cudnn_flex"]
#: The parts of loaded runs by their tokens. The run of 128 K has full attention on each of its four GPUs.
PARTS = {
    8192: ["pairs8k"],
    32768: [f"pairs32k_{part}" for part in "abcd"],
    131072: [*(f"pairs128k_{part}" for part in "abcdefg"), *(f"full128k_{gpu}" for gpu in range(4))],
}
_LOADED = "results/h200/dense/loaded"


def _is_dense(rows: DataFrame) -> Series:
    return rows["pattern"] != "uniform_block_sparse"


CHARTS = (
    *(
        Chart(
            f"dense-{tokens // 1024}k.png",
            _LOADED,
            {"seqlen": tokens, "run": parts, "kernel": _KERNELS, "condition": _is_dense},
            together=True,
        )
        for tokens, parts in PARTS.items()
    ),
    Chart("predicted.png", "results/h200/advice/leave_out.csv", drawn=(choosing_chart.draw, choosing_chart.figures)),
    Chart(
        "sparse-kept.png",
        "results/h200/sparse",
        {"condition": lambda rows: rows["run"] != "unequal"},
        drawn=(draw_by_kept, curves),
    ),
    Chart(
        "sparse-kept-hopper.png",
        "results/h200/sparse",
        {"condition": lambda rows: (rows["seqlen"].map(_HOPPER) == rows["run"]) | (rows["run"] == "hopper80")},
        drawn=(partial(draw_by_kept, base="fa4"), partial(curves, base="fa4")),
    ),
    Chart("sparse-kept-64.png", "results/h200/cudnn/blocks64", {"seqlen": 32768}, drawn=(draw_by_kept, curves)),
    Chart(
        "strategies.png",
        "results/h200/distributed",
        {"run": ["four", "two", "two-placed"]},
        drawn=(draw_by_strategy, strategy_points),
    ),
    Chart(
        "timeline.png",
        "results/h200/distributed/timeline-16k-full.json",
        {"strategy": ["ring_p2p"]},
        drawn=(partial(timeline_chart.draw, direction="backward"), timeline_chart.figures),
    ),
    Chart(
        "timeline-64k.png",
        "results/h100/distributed/timeline-64k-causal.json",
        {"strategy": ["ulysses"]},
        drawn=(partial(timeline_chart.draw, first=6.0), timeline_chart.figures),
    ),
)


def main(arguments: list[str]) -> int:
    """Draws the stale charts, or with `--check` names them; returns the exit code."""
    old = [chart for chart in CHARTS if chart.is_stale]
    for chart in old:
        print(f"docs/images/{chart.file}")
        if arguments != ["--check"]:
            chart.draw()
    return bool(old) if arguments == ["--check"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
