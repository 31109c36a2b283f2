"""The parts of pictures of layouts: sheets, colours, masks and tokens by rank, and timelines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "ARROW",
    "FONT",
    "INK",
    "MIDDLE",
    "MUTED",
    "Bar",
    "Ink",
    "Sheet",
    "draw_grid",
    "draw_matrix",
    "draw_strip",
    "draw_timeline",
    "rank_colour",
    "text_colour",
]

#: The dark and the light end of each hue.
_HUES = (
    ("#2f6db3", "#8fbbe8"),
    ("#d9652b", "#f5b48d"),
    ("#2e8b63", "#8dd0b0"),
    ("#8e4aa8", "#cda3dd"),
    ("#b03a5b", "#e5a3b5"),
    ("#6b7f1e", "#c3d17f"),
    ("#1f8a99", "#8fd3dc"),
    ("#7a5a3c", "#cdb49c"),
)
INK, MUTED, _HIDDEN, _VISIBLE = "#22262b", "#7a828c", "#ffffff", "#e4e7ec"
FONT = 7.5
#: Characters of a bar's label for each unit of the width of a timeline.
_ROOM = 110
MIDDLE: dict[str, Any] = {"ha": "center", "va": "center"}
ARROW: dict[str, Any] = {
    "arrowstyle": "-|>",
    "mutation_scale": 6.5,
    "linewidth": 1.0,
    "color": INK,
    "shrinkA": 0,
    "shrinkB": 0,
}


def rank_colour(rank: int, world_size: int, group: int = 1) -> str:
    """A rank's colour: a hue for each group of neighbours, and a shade for each member."""
    place, number = divmod(rank, group)
    shade = place // len(_HUES) * group + number
    shades = -(-world_size // group // len(_HUES)) * group
    dark, light = (np.array(to_rgb(end)) for end in _HUES[place % len(_HUES)])
    share = shade / (shades - 1) if shades > 1 else 0.0
    return str(to_hex(tuple(dark + (light - dark) * share)))


def text_colour(colour: str) -> str:
    """The colour of text on a colour."""
    return "white" if sum(to_rgb(colour)) < 1.7 else INK


class Sheet:
    """A figure whose places are in inches from its top left corner."""

    def __init__(self, width: float, height: float) -> None:
        self.figure, self.width, self.height = Figure(figsize=(width, height), dpi=200), width, height

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Axes at a place."""
        place = left / self.width, 1 - (top + height) / self.height, width / self.width, height / self.height
        return self.figure.add_axes(place)

    def text(self, left: float, top: float, words: str, **given: Any) -> None:
        """Words at a place."""
        style: dict[str, Any] = {"fontsize": FONT, "color": INK, "parse_math": False, **MIDDLE} | given
        self.figure.text(left / self.width, 1 - top / self.height, words, **style)

    def arrow(self, left: float, right: float, top: float) -> None:
        """An arrow to the right."""
        level = 1 - top / self.height
        ends = (left / self.width, level), (right / self.width, level)
        style = ARROW | {"mutation_scale": 9, "linewidth": 1.2}
        self.figure.add_artist(FancyArrowPatch(*ends, transform=self.figure.transFigure, **style))


@dataclass(frozen=True)
class Ink:
    """Some cells of a mask in the colour of the rank that computes them.

    Attributes:
        pairs: The cells: [queries, keys].
        colour: The colour.
        strength: 1 for the current call, less for earlier calls.
    """

    pairs: NDArray[np.bool_]
    colour: str
    strength: float = 1.0


def draw_matrix(axes: Axes, visible: NDArray[np.bool_], inks: Iterable[Ink]) -> None:
    """A mask, queries down and keys across: visible cells in grey, and computed ones in colours."""
    picture = np.ones((*visible.shape, 3)) * to_rgb(_HIDDEN)
    picture[visible] = to_rgb(_VISIBLE)
    for ink in inks:
        picture[ink.pairs] = (1 - ink.strength) * np.array(to_rgb(_HIDDEN)) + ink.strength * np.array(
            to_rgb(ink.colour)
        )
    _show(axes, picture)


def draw_strip(axes: Axes, colours: Sequence[str | None], *, down: bool = False) -> None:
    """Cells in a line, each in a rank's colour, or white without a rank."""
    line = np.array([to_rgb(colour or _HIDDEN) for colour in colours])
    _show(axes, line[:, None] if down else line[None])


def draw_grid(axes: Axes, colours: Sequence[Sequence[str]]) -> None:
    """Tokens down and heads across, each in the colour of a rank: [cells][heads]."""
    _show(axes, np.array([[to_rgb(colour) for colour in row] for row in colours]))
    for head in range(1, len(colours[0])):
        axes.axvline(head, color="white", linewidth=min(0.8, 6.4 / len(colours[0])))


def _show(axes: Axes, picture: NDArray[np.float64]) -> None:
    rows, columns, _ = picture.shape
    axes.imshow(picture, extent=(0, columns, rows, 0), interpolation="nearest", aspect="auto")
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color=MUTED, linewidth=0.6)


@dataclass(frozen=True)
class Bar:
    """A stretch of time on a rank.

    Attributes:
        lane: The line in which it is drawn.
        start: Its beginning.
        stop: Its end.
        label: Its name.
        colour: Its colour.
    """

    lane: str
    start: float
    stop: float
    label: str
    colour: str


def draw_timeline(axes: Axes, lanes: Sequence[str], bars: Sequence[Bar]) -> None:
    """Bars in lanes, the first lane on top, time to the right. A bar without room for its label has none."""
    end = max((bar.stop for bar in bars), default=0.0) or 1.0
    axes.set(xlim=(0, end * 1.012), ylim=(len(lanes) - 0.38, -0.55))
    for bar in bars:
        length, lane = bar.stop - bar.start, lanes.index(bar.lane)
        place = (bar.start, lane - 0.36), length, 0.72
        axes.add_patch(Rectangle(*place, facecolor=bar.colour, edgecolor="white", linewidth=0.8))
        if len(bar.label) <= _ROOM * length / end:
            middle = (bar.start + bar.stop) / 2, lane
            axes.text(
                *middle, bar.label, color=text_colour(bar.colour), **MIDDLE, fontsize=FONT - 1.2, parse_math=False
            )
    axes.set_yticks(range(len(lanes)), list(lanes), fontsize=FONT - 0.5)
    axes.set_xticks([])
    axes.tick_params(length=0)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    arrow = ARROW | {"mutation_scale": 7, "linewidth": 0.8, "color": MUTED}
    floor = len(lanes) - 0.45
    axes.add_patch(FancyArrowPatch((0, floor), (end * 1.012, floor), clip_on=False, **arrow))
