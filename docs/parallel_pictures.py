"""Pictures of strategies and placements: `python docs/parallel_pictures.py` writes docs/images/cp-*.png.

Who holds and computes what is from the real layouts, and what moves and when from a rehearsal of the strategy. Each
picture carries a digest of what it is made of, and a test holds that against those of today.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import parallel_placements
from matplotlib.figure import Figure
from parallel_drawing import (
    FONT,
    MUTED,
    Arrow,
    Ink,
    Seats,
    draw_grid,
    draw_matrix,
    draw_ranks,
    draw_strip,
    draw_timeline,
)
from parallel_scene import HEADS, SHOWN, Panel, Scene, digest, heads_words, scene_of
from parallel_sheet import Sheet

IMAGES = Path(__file__).resolve().parent / "images"
#: What the digest is called in a picture.
DIGEST = "Description"
#: How much colour is left of what was computed before, of dark and of light colours.
_EARLIER = (0.3, 0.42)

#: Inches: margins, where masks begin, headings above that, between columns and between masks, strips and how much
#: thinner they are where there are several, a seat of a rank, a lane of the timeline and its labels, a grid's width.
_MARGIN, _TOP, _HEADING, _GAP, _BETWEEN, _STRIP, _THIN = 0.08, 1.02, 0.26, 0.2, 0.24, 0.075, 0.6
_SEAT, _LANE, _LABELS, _GRID = 0.3, 0.235, 0.66, 0.62
_BOLD: dict[str, Any] = {"fontsize": FONT + 0.5, "fontweight": "bold"}


@dataclass(frozen=True)
class Sizes:
    """How large what is in a picture is, in inches.

    Attributes:
        side: A mask's side.
        across: Masks beside one another in a column.
        area: Height of a column.
        strips: Height of the lines of keys above a mask.
        seats: Where ranks are.
    """

    side: float
    across: int
    area: float
    strips: float
    seats: Seats

    @property
    def heading(self) -> float:
        """How far above masks the headings are."""
        return _HEADING + self.strips

    @property
    def column(self) -> float:
        """Width of a column of masks."""
        return self.across * self.side + (self.across - 1) * _BETWEEN

    @property
    def line(self) -> float:
        """Width of the line of ranks."""
        left, right, *_ = self.seats.bounds
        return (right - left) * _SEAT

    @property
    def ranks(self) -> float:
        """Height of the line of ranks."""
        return self.line * self.seats.ratio


def _sizes(scene: Scene) -> Sizes:
    panels, axes = scene.panels(0), list(scene.rehearsal.axis_sizes.values())
    side, across = (1.3, 1) if len(panels) < 3 else (0.8, 2)
    down = -(-len(panels) // across)
    strips = _STRIP * max(1.0, _THIN * len(scene.key_lines(panels[0])))
    double = len(axes) > 2
    seats = Seats(len(scene.ranks), axes[0] if double else 1, 2 if double else 1)
    return Sizes(side, across, down * side + (down - 1) * _BETWEEN, strips, seats)


def draw(strategy: str) -> Figure:
    """The picture of a strategy."""
    scene = scene_of(strategy)
    sizes, columns = _sizes(scene), _columns(scene)
    widths = [sizes.column if kind == "keys" or isinstance(kind, int) else _GRID for kind in columns]
    slots = [max(width + _STRIP + 0.05, sizes.line) + _GAP for width in widths]
    lanes = scene.lanes()
    below = _TOP + sizes.area + 0.08
    time = below + sizes.ranks + 0.14
    left = _MARGIN + 0.14
    sheet = Sheet(left + sum(slots) + _MARGIN, time + _LANE * len(lanes) + 0.3)
    _draw_title(sheet, scene, strategy, left)
    for kind, width, slot in zip(columns, widths, slots, strict=True):
        middle = left + slot / 2
        place = middle - width / 2, _TOP
        if isinstance(kind, int):
            _draw_call(sheet, scene, kind, place, sizes)
        elif kind == "keys":
            _draw_keys(sheet, scene, place, sizes)
        else:
            _draw_held(sheet, scene, kind, place, sizes)
        if kind in ("exchanged", "out"):
            sheet.arrow(left - 0.1, left + 0.12, _TOP + sizes.area / 2)
        arrows = _beneath(scene, kind)
        if arrows or isinstance(kind, int):
            axes = sheet.axes(middle - sizes.line / 2, below, sizes.line, sizes.ranks)
            chips = scene.chips(kind) if isinstance(kind, int) else {}
            draw_ranks(axes, sizes.seats, [scene.colour(rank) for rank in scene.ranks], chips, arrows)
        left += slot
    _draw_time(sheet, scene, lanes, time)
    return sheet.figure


def _columns(scene: Scene) -> list[str | int]:
    """What a picture has from left to right: what is held, by tokens and by heads; the calls; what comes out."""
    calls = list(range(scene.calls))
    if scene.exchanges_heads():
        return ["held", "exchanged", *calls, "out"]
    return ["keys", *calls] if scene.arrows(0, hidden=False) else [*calls]


def _beneath(scene: Scene, kind: str | int) -> list[Arrow]:
    if isinstance(kind, int):
        return scene.arrows(kind, hidden=True)
    if kind == "out":
        return scene.arrows(scene.calls, hidden=False)
    return scene.arrows(0, hidden=False) if kind in ("held", "keys") else []


def _draw_title(sheet: Sheet, scene: Scene, strategy: str, left: float) -> None:
    title, axis_sizes, placement = SHOWN[strategy]
    mesh = " × ".join(f"{axis} {size}" for axis, size in axis_sizes.items())
    ranks = f"{len(scene.ranks)} ranks" + (f" ({mesh})" if len(axis_sizes) > 1 else "")
    sheet.text(left, 0.17, title, fontsize=FONT + 3.5, ha="left", fontweight="bold")
    about = f"{ranks}, {HEADS} heads, causal mask, {placement} placement"
    sheet.text(left, 0.37, about, color=MUTED, ha="left", fontsize=FONT - 0.5)


def _draw_call(sheet: Sheet, scene: Scene, call: int, place: tuple[float, float], sizes: Sizes) -> None:
    """The masks of one call: each rank's part of it in its colour, paler what was computed before."""
    left, top = place
    panels = scene.panels(call)
    is_step = len(scene.rehearsal.layout.steps[0]) > 1
    words = f"step {call}" if is_step else f"call {call}"
    sheet.text(left + sizes.column / 2, top - sizes.heading, words, **_BOLD)
    for index, panel in enumerate(panels):
        x = left + index % sizes.across * (sizes.side + _BETWEEN)
        y = top + index // sizes.across * (sizes.side + _BETWEEN)
        _draw_panel(sheet, scene, panel, (x, y), sizes.side)
        sheet.text(x + sizes.side / 2, y - 0.1 - sizes.strips, heads_words(panel.heads), fontsize=FONT - 1, color=MUTED)
    if call == 0 and "keys" not in _columns(scene):
        _draw_axes_words(sheet, (left, top), sizes.side)


def _draw_panel(sheet: Sheet, scene: Scene, panel: Panel, place: tuple[float, float], side: float) -> None:
    x, y = place
    inks = [
        Ink(scene.pairs(step), scene.colour(rank), _EARLIER[rank % scene.group])
        for rank, steps in panel.earlier.items()
        for step in steps
    ]
    inks += [Ink(scene.pairs(step), scene.colour(rank)) for rank, step in panel.steps.items()]
    draw_matrix(sheet.axes(x, y, side, side), scene.visible, inks)
    lines = scene.key_lines(panel)
    high = _STRIP if len(lines) == 1 else _STRIP * _THIN
    for number, line in enumerate(reversed(lines)):
        draw_strip(sheet.axes(x, y - 0.02 - high * (number + 1), side, high), line)
    draw_strip(sheet.axes(x - 0.02 - _STRIP, y, _STRIP, side), scene.query_line(panel), down=True)


def _draw_axes_words(sheet: Sheet, place: tuple[float, float], side: float) -> None:
    """What goes down and across in a mask."""
    x, y = place
    small = {"fontsize": FONT - 1.5, "color": MUTED}
    sheet.text(x - _STRIP - 0.1, y + side / 2, "← queries", rotation=90, **small)
    sheet.text(x + side * 0.97, y + 0.1, "keys →", **small | {"ha": "right"})


def _draw_keys(sheet: Sheet, scene: Scene, place: tuple[float, float], sizes: Sizes) -> None:
    """Before anything moves: each rank's own queries and keys."""
    x, y = place
    draw_matrix(sheet.axes(x, y, sizes.side, sizes.side), scene.visible, [])
    owners = scene.owners()
    draw_strip(sheet.axes(x, y - 0.02 - _STRIP, sizes.side, _STRIP), owners)
    draw_strip(sheet.axes(x - 0.02 - _STRIP, y, _STRIP, sizes.side), owners, down=True)
    sheet.text(x + sizes.side / 2, y - sizes.heading, "held", **_BOLD)
    _draw_axes_words(sheet, place, sizes.side)


def _draw_held(sheet: Sheet, scene: Scene, kind: str, place: tuple[float, float], sizes: Sizes) -> None:
    """Tokens by heads, in the colour of who has them."""
    (x, y), height = place, sizes.area
    colours = scene.by_heads() if kind == "exchanged" else scene.by_tokens()
    draw_grid(sheet.axes(x, y, _GRID, height), colours)
    words = {"held": "q, k, v held", "exchanged": "exchanged", "out": "out"}[kind]
    sheet.text(x + _GRID / 2, y - sizes.heading, words, **_BOLD)
    small = {"fontsize": FONT - 1.5, "color": MUTED}
    sheet.text(x + _GRID / 2, y - 0.1, "heads →", **small)
    if kind == "held":
        sheet.text(x - 0.1, y + height / 2, "← tokens", rotation=90, **small)


def _draw_time(sheet: Sheet, scene: Scene, lanes: Sequence[str], top: float) -> None:
    start = _MARGIN + _LABELS
    axes = sheet.axes(start, top, sheet.width - start - 2 * _MARGIN, _LANE * len(lanes) + 0.06)
    draw_timeline(axes, lanes, scene.bars())
    words = "time on rank 0, not to scale; k and v in the colour of whose they are"
    if scene.chips(0) == {}:
        words = "time on rank 0, not to scale"
    place = sheet.width - 2 * _MARGIN, top + _LANE * len(lanes) + 0.18
    sheet.text(*place, words, ha="right", fontsize=FONT - 1.5, color=MUTED)


def _digest(strategy: str) -> str:
    return digest(scene_of(strategy))


@dataclass(frozen=True)
class Picture:
    """A picture that can be drawn.

    Attributes:
        draw: Draws it.
        digest: A hash of all that it is made of.
    """

    draw: Callable[[], Figure]
    digest: Callable[[], str]


#: Every picture by its name.
PICTURES: Mapping[str, Picture] = {
    **{
        f"cp-{strategy.replace('_', '-')}": Picture(partial(draw, strategy), partial(_digest, strategy))
        for strategy in SHOWN
    },
    "cp-placements": Picture(parallel_placements.draw, parallel_placements.digest),
}


def write(name: str, folder: Path = IMAGES) -> Path:
    """Draws a picture into a folder, with the digest of what it shows."""
    path, picture = folder / f"{name}.png", PICTURES[name]
    metadata = {DIGEST: picture.digest(), "Software": None}
    picture.draw().savefig(path, metadata=metadata, pil_kwargs={"optimize": True})
    return path


if __name__ == "__main__":
    for each in PICTURES:
        print(write(each))
