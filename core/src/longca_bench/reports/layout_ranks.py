"""Ranks in a picture: their places, the keys beside each, and the transfers between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

from longca_bench.reports.layout_drawing import ARROW, FONT, INK, MIDDLE, text_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Arrow", "Seats", "draw_ranks"]

_BOTH = ARROW | {"arrowstyle": "<|-|>"}


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
    axes.text(x, y - 0.02, str(rank), color=text_colour(colour), **MIDDLE, fontsize=FONT - 1, zorder=4)
    if keys is not None:
        level = y + 0.64 * seats.outward(rank)
        box = "round,pad=0,rounding_size=0.1"
        axes.add_patch(FancyBboxPatch((x - 0.31, level - 0.19), 0.62, 0.38, boxstyle=box, facecolor=keys, **edge))
        axes.text(x, level - 0.02, "KV", color=text_colour(keys), **MIDDLE, fontsize=FONT - 2.5, zorder=4)


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
    style = _BOTH if is_mutual else ARROW
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
