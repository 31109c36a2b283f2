"""The picture of a timeline: what each GPU does in one call, with copies and collectives below the kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pandas import DataFrame

from longca_bench.reports.rows import Rows

#: The kinds of spans, each with its words and colour, from the top of a GPU's lane to its bottom.
KINDS: Mapping[str, tuple[str, str]] = {
    "kernel": ("kernels", "#120b7a"),
    "copy": ("copies by the copy engines", "#c28e24"),
    "local_copy": ("copies within a GPU", "#8fa3bf"),
    "collective": ("NCCL's kernels", "#7f2117"),
}
_FONT, _INCHES = 7.0, 0.62  # of a lane
#: The share of a lane that a kind takes.
_PART = 0.9 / len(KINDS)
_COLUMNS = ["strategy", "transport", "direction", "rank", "kind", "start", "end"]


def figures(rows: Rows) -> DataFrame:
    """The spans of a record of `longca_cp/benchmarks/timeline.py`, in milliseconds."""
    return rows.frame(_COLUMNS)


def draw(
    rows: Rows,
    path: Path,
    *,
    direction: str = "forward",
    first: float | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Draws a lane for each GPU of each strategy and transport.

    Args:
        rows: The record's rows.
        path: The file to write.
        direction: The direction to draw.
        first: Milliseconds at the beginning of the call that are drawn, or None for the whole call.
        metadata: Metadata of the file.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    spans = figures(rows)
    spans = spans[spans["direction"] == direction]
    lanes = [(about, part) for about, part in spans.groupby(["strategy", "transport", "rank"], sort=False)]
    figure = Figure(figsize=(7.0, 0.8 + _INCHES * len(lanes)), layout="constrained")
    axes: Any = figure.subplots()
    for lane, (_, part) in enumerate(lanes):
        for place, (kind, (_, colour)) in enumerate(KINDS.items()):
            times = part[part["kind"] == kind]
            bars = list(zip(times["start"], times["end"] - times["start"], strict=True))
            axes.broken_barh(bars, (lane + 0.05 + _PART * place, 0.93 * _PART), color=colour, linewidth=0)
    axes.set_yticks([lane + 0.5 for lane in range(len(lanes))])
    names = [f"{strategy}, {transport.replace('_', ' ')}\nGPU {rank}" for (strategy, transport, rank), _ in lanes]
    axes.set_yticklabels(names, fontsize=_FONT)
    axes.set_ylim(len(lanes), 0)
    if first is not None:
        axes.set_xlim(0.0, first)
    axes.set_xlabel(f"ms of one {direction}{'' if first is None else ', its beginning'}", fontsize=_FONT)
    axes.tick_params(axis="x", labelsize=_FONT)
    axes.spines[["top", "right"]].set_visible(False)
    shown = [Patch(color=colour, label=words) for kind, (words, colour) in KINDS.items() if kind in set(spans["kind"])]
    figure.legend(handles=shown, loc="outside upper center", ncols=len(shown), fontsize=_FONT, frameon=False)
    figure.savefig(path, dpi=200, metadata=dict(metadata or {}))
