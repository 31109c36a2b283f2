"""The picture of placements: the queries of each rank by each placement, and the share of the mask of each rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from longca_bench.reports.layout_arrangement import Arrangement
from longca_bench.reports.layout_drawing import FONT, INK, MUTED, Ink, Sheet, draw_matrix, draw_strip
from longca_bench.reports.layout_picture import check_ranks
from longca_bench.reports.layout_scene import Scene

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_placements"]

#: Inches: a mask's side, gaps, strips, bars, the left margin and the top of masks.
_SIDE, _GAP, _STRIP, _BAR, _LEFT, _TOP = 1.3, 0.34, 0.075, 0.42, 0.42, 0.6
_ROW = _SIDE + _BAR + 0.52


#: For each mask's name its arrangement by placement. None stands for a placement without a layout.
Placements = Mapping[str, Mapping[str, Arrangement | None]]


def draw_placements(found: Placements) -> Figure:
    """A row for each mask, and a column for each placement.

    Raises:
        RequestError: There are more ranks than a picture has room for.
    """
    placements = list(dict.fromkeys(placement for by_placement in found.values() for placement in by_placement))
    check_ranks(max((made.world_size for by in found.values() for made in by.values() if made), default=0))
    sheet = Sheet(_LEFT + len(placements) * (_SIDE + _GAP) + 0.1, _TOP + len(found) * _ROW - 0.02)
    for column, placement in enumerate(placements):
        middle = _LEFT + column * (_SIDE + _GAP) + _SIDE / 2
        sheet.text(middle, 0.2, placement, fontsize=FONT + 1.5, fontweight="bold")
    for line, (name, by_placement) in enumerate(found.items()):
        top = _TOP + line * _ROW
        sheet.text(0.13, top + _SIDE / 2, name, rotation=90, fontsize=FONT + 1.5, fontweight="bold")
        for column, placement in enumerate(placements):
            left = _LEFT + column * (_SIDE + _GAP)
            made = by_placement.get(placement)
            if made is None:
                sheet.text(left + _SIDE / 2, top + _SIDE / 2, "not for this mask", color=MUTED)
            else:
                _draw_one(sheet, Scene(made), left, top)
    return sheet.figure


def _draw_one(sheet: Sheet, scene: Scene, left: float, top: float) -> None:
    shards = scene.arrangement.layout.shards
    inks = [Ink(scene.visible & scene.cells.of(shard)[:, None], scene.colour(r)) for r, shard in enumerate(shards)]
    draw_matrix(sheet.axes(left, top, _SIDE, _SIDE), scene.visible, inks)
    draw_strip(sheet.axes(left - 0.02 - _STRIP, top, _STRIP, _SIDE), scene.owners, down=True)
    _draw_shares(sheet, scene, left, top + _SIDE + 0.12)


def _draw_shares(sheet: Sheet, scene: Scene, left: float, top: float) -> None:
    """A bar for each rank's visible pairs, and a line at their mean."""
    pairs = scene.arrangement.pairs
    mean = sum(pairs) / len(pairs) or 1.0
    axes = sheet.axes(left, top, _SIDE, _BAR)
    colours = [scene.colour(rank) for rank in scene.ranks]
    axes.bar(list(scene.ranks), [each / mean for each in pairs], color=colours, width=0.72)
    axes.axhline(1, color=INK, linewidth=0.7, linestyle=(0, (3, 2)))
    axes.set(xlim=(-0.6, len(pairs) - 0.4), ylim=(0, max(2.0, scene.arrangement.imbalance)), xticks=[], yticks=[])
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set(color=MUTED, linewidth=0.6)
    words = f"busiest rank: {scene.arrangement.imbalance:.2f} of the mean"
    sheet.text(left + _SIDE / 2, top + _BAR + 0.1, words, fontsize=FONT - 1, color=MUTED)
