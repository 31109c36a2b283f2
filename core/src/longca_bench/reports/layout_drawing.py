"""The parts of pictures of layouts: sheets, masks by rank, tokens by rank, ranks with arrows, and timelines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "FONT",
    "INK",
    "MUTED",
    "Arrow",
    "Bar",
    "Ink",
    "Seats",
    "Sheet",
    "draw_grid",
    "draw_matrix",
    "draw_ranks",
    "draw_strip",
    "draw_timeline",
    "rank_colour",
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
_MIDDLE: dict[str, Any] = {"ha": "center", "va": "center"}
_ARROW: dict[str, Any] = {
    "arrowstyle": "-|>",
    "mutation_scale": 6.5,
    "linewidth": 1.0,
    "color": INK,
    "shrinkA": 0,
    "shrinkB": 0,
}
_BOTH = _ARROW | {"arrowstyle": "<|-|>"}


def rank_colour(rank: int, world_size: int, group: int = 1) -> str:
    """A rank's colour: a hue for each group of neighbours, and a shade for each member."""
    place, number = divmod(rank, group)
    shade = place // len(_HUES) * group + number
    shades = -(-world_size // group // len(_HUES)) * group
    dark, light = (np.array(to_rgb(end)) for end in _HUES[place % len(_HUES)])
    share = shade / (shades - 1) if shades > 1 else 0.0
    return str(to_hex(tuple(dark + (light - dark) * share)))


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
        style: dict[str, Any] = {"fontsize": FONT, "color": INK, "parse_math": False, **_MIDDLE} | given
        self.figure.text(left / self.width, 1 - top / self.height, words, **style)

    def arrow(self, left: float, right: float, top: float) -> None:
        """An arrow to the right."""
        level = 1 - top / self.height
        ends = (left / self.width, level), (right / self.width, level)
        style = _ARROW | {"mutation_scale": 9, "linewidth": 1.2}
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
class Arrow:
    """A transfer between ranks.

    Attributes:
        ranks: The sender and the receiver, or all ranks of a collective.
        label: What it carries, and along which axis.
        is_collective: Whether each of the ranks sends to every other one.
    """

    ranks: tuple[int, ...]
    label: str
    is_collective: bool = False


@dataclass(frozen=True)
class Seats:
    """The places of ranks side by side, in one row or in two, in units of the room of one rank.

    Attributes:
        count: Number of ranks.
        rows: Number of rows, 1 or 2.
        lines: Lines of words below them.
    """

    count: int
    rows: int
    lines: int

    @property
    def columns(self) -> int:
        """Ranks of a row."""
        return self.count // self.rows

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Left, right, bottom and top of the drawing."""
        bottom = (-1.1 if self.rows == 1 else -3.35) - 0.35 * self.lines
        return -0.55, max(self.columns, 4) - 0.45, bottom, 1.35

    @property
    def ratio(self) -> float:
        """Height over width."""
        left, right, bottom, top = self.bounds
        return (top - bottom) / (right - left)

    def place(self, rank: int) -> tuple[float, float]:
        """The middle of a rank."""
        margin = (max(self.columns, 4) - self.columns) / 2
        return rank % self.columns + margin, -1.55 * self.row(rank)

    def row(self, rank: int) -> int:
        """The row of a rank."""
        return rank // self.columns

    def outward(self, rank: int) -> int:
        """The side of a rank with its keys: 1 above it, −1 below."""
        return -1 if self.row(rank) else 1


def draw_ranks(
    axes: Axes, seats: Seats, colours: Sequence[str], chips: Mapping[int, str], arrows: Sequence[Arrow]
) -> None:
    """Ranks, the keys beside each in the colour of their owner, and the transfers between them.

    Args:
        axes: Axes of the seats' ratio.
        seats: The places of the ranks.
        colours: The ranks' colours.
        chips: The colour of each rank's keys. Ranks without keys are drawn bare.
        arrows: The transfers.
    """
    left, right, bottom, top = seats.bounds
    axes.set(xlim=(left, right), ylim=(bottom, top))
    axes.set_axis_off()
    for rank, colour in enumerate(colours):
        _draw_rank(axes, seats, rank, colour, chips.get(rank))
    hops = [arrow.ranks for arrow in arrows if not arrow.is_collective]
    for start, stop in hops:
        is_mutual = (stop, start) in hops
        if start != stop and (not is_mutual or start < stop):
            _draw_hop(axes, seats, start, stop, is_mutual)
    for ranks in sorted({arrow.ranks for arrow in arrows if arrow.is_collective}):
        _draw_bus(axes, seats, ranks)
    labels = dict.fromkeys(arrow.label for arrow in arrows)
    level = seats.place(len(colours) - 1)[1] - (0.95 if seats.rows == 1 else 1.55)
    style: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": FONT - 1, "color": INK, "parse_math": False}
    axes.text((left + right) / 2, level, "\n".join(labels), **style)


def _draw_rank(axes: Axes, seats: Seats, rank: int, colour: str, keys: str | None) -> None:
    x, y = seats.place(rank)
    edge: dict[str, Any] = {"edgecolor": INK, "linewidth": 0.6, "zorder": 3}
    axes.add_patch(Circle((x, y), 0.3, facecolor=colour, **edge))
    axes.text(x, y - 0.02, str(rank), color=_on(colour), **_MIDDLE, fontsize=FONT - 1, zorder=4)
    if keys is not None:
        level = y + 0.64 * seats.outward(rank)
        box = "round,pad=0,rounding_size=0.1"
        axes.add_patch(FancyBboxPatch((x - 0.31, level - 0.19), 0.62, 0.38, boxstyle=box, facecolor=keys, **edge))
        axes.text(x, level - 0.02, "KV", color=_on(keys), **_MIDDLE, fontsize=FONT - 2.5, zorder=4)


def _on(colour: str) -> str:
    """The colour of text on a colour."""
    return "white" if sum(to_rgb(colour)) < 1.7 else INK


def _draw_bus(axes: Axes, seats: Seats, ranks: Sequence[int]) -> None:
    """A line between all ranks of a collective, on the side without keys."""
    places = [seats.place(rank) for rank in ranks]
    side = -seats.outward(ranks[0])
    level = places[0][1] + 0.68 * side
    columns = [x for x, _ in places]
    axes.plot([min(columns), max(columns)], [level, level], color=INK, linewidth=1.0, solid_capstyle="round")
    for x, y in places:
        end = y + 0.31 * (1 if level > y else -1)
        axes.add_patch(FancyArrowPatch((x, level), (x, end), **_BOTH | {"mutation_scale": 5}))


def _draw_hop(axes: Axes, seats: Seats, start: int, stop: int, is_mutual: bool) -> None:
    """An arrow between the keys of two ranks: straight to a neighbour, and curved to others."""
    style = _BOTH if is_mutual else _ARROW
    (x0, y0), (x1, y1) = seats.place(start), seats.place(stop)
    if seats.row(start) != seats.row(stop):
        down = 1 if y0 > y1 else -1
        axes.add_patch(FancyArrowPatch((x0, y0 - 0.32 * down), (x1, y1 + 0.32 * down), **style))
        return
    side = seats.outward(start)
    if x1 - x0 == 1:
        axes.add_patch(FancyArrowPatch((x0 + 0.31, y0 + 0.64 * side), (x1 - 0.31, y1 + 0.64 * side), **style))
        return
    level = y0 + 0.85 * side
    bend = (-1 if x1 > x0 else 1) * side * 0.9 / abs(x1 - x0) ** 0.75
    axes.add_patch(FancyArrowPatch((x0, level), (x1, level), connectionstyle=f"arc3,rad={bend / 1.6}", **style))


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
            axes.text(*middle, bar.label, color=_on(bar.colour), **_MIDDLE, fontsize=FONT - 1.2, parse_math=False)
    axes.set_yticks(range(len(lanes)), list(lanes), fontsize=FONT - 0.5)
    axes.set_xticks([])
    axes.tick_params(length=0)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    arrow = _ARROW | {"mutation_scale": 7, "linewidth": 0.8, "color": MUTED}
    floor = len(lanes) - 0.45
    axes.add_patch(FancyArrowPatch((0, floor), (end * 1.012, floor), clip_on=False, **arrow))
