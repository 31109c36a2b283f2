"""The sizes of the parts of a layout's picture, in inches."""

from __future__ import annotations

from dataclasses import dataclass

from longca_bench.reports.layout_ranks import Seats
from longca_bench.reports.layout_scene import Scene

__all__ = ["BETWEEN", "STRIP", "THIN", "Sizes"]

#: The distance of headings from masks, the gap between masks, a strip, and how much thinner several strips are.
HEADING, BETWEEN, STRIP, THIN = 0.26, 0.24, 0.075, 0.6
#: The room of a rank.
SEAT = 0.3


@dataclass(frozen=True)
class Sizes:
    """The sizes of the parts of a picture, in inches.

    Attributes:
        side: A mask's side.
        across: Masks beside one another in a column.
        area: Height of a column.
        strips: Height of the lines of keys above a mask.
        seats: The places of ranks.
    """

    side: float
    across: int
    area: float
    strips: float
    seats: Seats

    @classmethod
    def of(cls, scene: Scene) -> Sizes:
        """The sizes for a scene."""
        panels, sizes = scene.panels(0), list(scene.arrangement.axis_sizes.values())
        side, across = (1.3, 1) if len(panels) < 3 else (0.8, 2 if len(panels) <= 8 else 4)
        down = -(-len(panels) // across)
        strips = STRIP * max(1.0, THIN * len(scene.key_lines(panels[0])))
        rows = 2 if (len(sizes) > 2 and sizes[0] == 2) or (len(scene.ranks) > 8 and len(scene.ranks) % 2 == 0) else 1
        seats = Seats(len(scene.ranks), rows, 2 if len(sizes) > 2 else 1)
        return cls(side, across, down * side + (down - 1) * BETWEEN, strips, seats)

    @property
    def heading(self) -> float:
        """The distance of headings from masks."""
        return HEADING + self.strips

    @property
    def column(self) -> float:
        """Width of a column of masks."""
        return self.across * self.side + (self.across - 1) * BETWEEN

    @property
    def line(self) -> float:
        """Width of the line of ranks."""
        left, right, *_ = self.seats.bounds
        return (right - left) * SEAT

    @property
    def ranks(self) -> float:
        """Height of the line of ranks."""
        return self.line * self.seats.ratio
