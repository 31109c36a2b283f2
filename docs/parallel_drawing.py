"""What pictures of context parallelism are made of: masks by who computes them, who holds what, moves and time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Dark and light of each group of ranks: one hue a group, one shade a member.
HUES = (("#2f6db3", "#8fbbe8"), ("#d9652b", "#f5b48d"), ("#2e8b63", "#8dd0b0"), ("#8e4aa8", "#cda3dd"))
INK, MUTED, FAINT, HIDDEN = "#22262b", "#7a828c", "#dfe3e8", "#ffffff"
_VISIBLE = "#e4e7ec"
FONT = 7.5

Bools = NDArray[np.bool_]


def colour_of(rank: int, group: int = 1) -> str:
    """A rank's colour, where so many neighbours are a group."""
    return HUES[rank // group % len(HUES)][rank % group]


@dataclass(frozen=True)
class Ink:
    """Some pairs of a mask, in the colour of who computes them.

    Attributes:
        pairs: Which: [queries, keys].
        colour: The colour.
        strength: 1 for what is computed now, less for what was.
    """

    pairs: Bools
    colour: str
    strength: float = 1.0


def draw_matrix(axes: Axes, visible: Bools, inks: Iterable[Ink]) -> None:
    """A mask, queries down and keys across: what it shows in grey, and what is computed in colours."""
    picture = np.ones((*visible.shape, 3)) * to_rgb(HIDDEN)
    picture[visible] = to_rgb(_VISIBLE)
    for ink in inks:
        picture[ink.pairs] = (1 - ink.strength) * np.array(to_rgb(HIDDEN)) + ink.strength * np.array(to_rgb(ink.colour))
    rows, columns = visible.shape
    axes.imshow(picture, extent=(0, columns, rows, 0), interpolation="nearest", aspect="auto")
    _frame(axes)


def draw_strip(axes: Axes, colours: Sequence[str | None], *, down: bool = False) -> None:
    """Tokens in a line, each in the colour of who has it; None for those that nobody has."""
    line = np.array([to_rgb(colour or HIDDEN) for colour in colours])
    picture = line[:, None] if down else line[None]
    axes.imshow(picture, interpolation="nearest", aspect="auto")
    _frame(axes)


def draw_grid(axes: Axes, colours: Sequence[Sequence[str]]) -> None:
    """Tokens down and heads across, each in the colour of the rank that has it: [tokens][heads]."""
    picture = np.array([[to_rgb(colour) for colour in row] for row in colours])
    rows, heads, _ = picture.shape
    axes.imshow(picture, extent=(0, heads, rows, 0), interpolation="nearest", aspect="auto")
    for head in range(1, heads):
        axes.axvline(head, color="white", linewidth=0.8)
    _frame(axes)


def _frame(axes: Axes) -> None:
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color=MUTED, linewidth=0.6)


@dataclass(frozen=True)
class Arrow:
    """Something that goes from ranks to ranks.

    Attributes:
        ranks: From which to which; all of a group, where it is a collective.
        label: What it is.
        is_collective: Whether every one of the ranks sends to every other.
    """

    ranks: tuple[int, ...]
    label: str
    is_collective: bool = False


@dataclass(frozen=True)
class Seats:
    """Where ranks are drawn: side by side, in one row or in two, in units of the room that one takes.

    Attributes:
        count: How many they are.
        rows: In how many rows.
        lines: Lines of words below them.
    """

    count: int
    rows: int
    lines: int

    @property
    def columns(self) -> int:
        """Ranks a row."""
        return self.count // self.rows

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Left, right, bottom and top of all that is drawn."""
        return (
            -0.55,
            self.columns - 0.45,
            -1.1 - 0.35 * self.lines if self.rows == 1 else -3.35 - 0.35 * self.lines,
            1.35,
        )

    @property
    def ratio(self) -> float:
        """Height over width."""
        left, right, bottom, top = self.bounds
        return (top - bottom) / (right - left)

    def place(self, rank: int) -> tuple[float, float]:
        """The middle of a rank."""
        return rank % self.columns, -1.55 * self.row(rank)

    def row(self, rank: int) -> int:
        """The row of a rank."""
        return rank // self.columns

    def outward(self, rank: int) -> int:
        """The side of a rank on which its keys are: 1 above it, −1 below."""
        return -1 if self.row(rank) else 1


ARROW: dict[str, Any] = {
    "arrowstyle": "-|>",
    "mutation_scale": 6.5,
    "linewidth": 1.0,
    "color": INK,
    "shrinkA": 0,
    "shrinkB": 0,
}
_BOTH = ARROW | {"arrowstyle": "<|-|>"}


def draw_ranks(
    axes: Axes, seats: Seats, colours: Sequence[str], chips: Mapping[int, str], arrows: Sequence[Arrow]
) -> None:
    """Ranks: beside each the keys that it has, by the colour of who had them first; and what moves between them.

    Args:
        axes: Where to, of the seats' ratio.
        seats: Where they are.
        colours: The ranks'.
        chips: Of each rank the colour of its keys; ranks without are drawn bare.
        arrows: What moves.
    """
    left, right, bottom, top = seats.bounds
    axes.set(xlim=(left, right), ylim=(bottom, top))
    axes.set_axis_off()
    for rank, colour in enumerate(colours):
        _draw_rank(axes, seats, rank, colour, chips.get(rank))
    hops = [arrow.ranks for arrow in arrows if not arrow.is_collective]
    for start, stop in hops:
        is_mutual = (stop, start) in hops
        if not is_mutual or start < stop:
            _draw_hop(axes, seats, start, stop, is_mutual)
    for ranks in sorted({arrow.ranks for arrow in arrows if arrow.is_collective}):
        _draw_bus(axes, seats, ranks)
    labels = dict.fromkeys(arrow.label for arrow in arrows)
    level = seats.place(len(colours) - 1)[1] - (0.95 if seats.rows == 1 else 1.55)
    style: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": FONT - 1, "color": INK}
    axes.text((left + right) / 2, level, "\n".join(labels), **style)


_MIDDLE: dict[str, Any] = {"ha": "center", "va": "center"}


def _draw_rank(axes: Axes, seats: Seats, rank: int, colour: str, keys: str | None) -> None:
    """A rank, and beside it the keys that it has."""
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
    """What can be read on a colour."""
    return "white" if sum(to_rgb(colour)) < 1.7 else INK


def _draw_bus(axes: Axes, seats: Seats, ranks: Sequence[int]) -> None:
    """A line that all of some ranks are on, on the side where no keys are."""
    places = [seats.place(rank) for rank in ranks]
    side = -seats.outward(ranks[0])
    level = places[0][1] + 0.68 * side
    columns = [x for x, _ in places]
    axes.plot([min(columns), max(columns)], [level, level], color=INK, linewidth=1.0, solid_capstyle="round")
    for x, y in places:
        axes.add_patch(FancyArrowPatch((x, level), (x, y + 0.31 * side), **_BOTH | {"mutation_scale": 5}))


def _draw_hop(axes: Axes, seats: Seats, start: int, stop: int, is_mutual: bool) -> None:
    """An arrow from one rank's keys to where another's are: straight to its neighbour, round to others."""
    style = _BOTH if is_mutual else ARROW
    (x0, y0), (x1, y1) = seats.place(start), seats.place(stop)
    if seats.row(start) != seats.row(stop):
        axes.add_patch(FancyArrowPatch((x0, y0 - 0.32), (x1, y1 + 0.32), **style))
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
    """Something that takes a rank time.

    Attributes:
        lane: In which line it is drawn.
        start: When it begins.
        stop: When it ends.
        label: What it is.
        colour: Its colour.
    """

    lane: str
    start: float
    stop: float
    label: str
    colour: str


def draw_timeline(axes: Axes, lanes: Sequence[str], bars: Iterable[Bar]) -> None:
    """Bars in lanes, the first lane on top, time to the right."""
    bars = list(bars)
    end = max(bar.stop for bar in bars)
    axes.set(xlim=(0, end * 1.012), ylim=(len(lanes) - 0.38, -0.55))
    for bar in bars:
        place = (bar.start, lanes.index(bar.lane) - 0.36), bar.stop - bar.start, 0.72
        axes.add_patch(Rectangle(*place, facecolor=bar.colour, edgecolor="white", linewidth=0.8))
        middle = (bar.start + bar.stop) / 2, lanes.index(bar.lane)
        axes.text(*middle, bar.label, color=_on(bar.colour), **_MIDDLE, fontsize=FONT - 1.2)
    axes.set_yticks(range(len(lanes)), lanes, fontsize=FONT - 0.5)
    axes.set_xticks([])
    axes.tick_params(length=0)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    arrow = ARROW | {"mutation_scale": 7, "linewidth": 0.8, "color": MUTED}
    floor = len(lanes) - 0.45
    axes.add_patch(FancyArrowPatch((0, floor), (end * 1.012, floor), clip_on=False, **arrow))
