"""A figure on which things are placed by inches from its top left."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from parallel_drawing import ARROW, FONT, INK


class Sheet:
    """A figure whose places are in inches from its top left."""

    def __init__(self, width: float, height: float) -> None:
        self.figure, self.width, self.height = Figure(figsize=(width, height), dpi=200), width, height

    def axes(self, left: float, top: float, width: float, height: float) -> Any:
        """Axes at a place."""
        place = left / self.width, 1 - (top + height) / self.height, width / self.width, height / self.height
        return self.figure.add_axes(place)

    def text(self, left: float, top: float, words: str, **given: Any) -> None:
        """Words at a place."""
        style: dict[str, Any] = {"fontsize": FONT, "color": INK, "ha": "center", "va": "center"} | given
        self.figure.text(left / self.width, 1 - top / self.height, words, **style)

    def arrow(self, left: float, right: float, top: float) -> None:
        """An arrow to the right."""
        level = 1 - top / self.height
        ends = (left / self.width, level), (right / self.width, level)
        style = ARROW | {"mutation_scale": 9, "linewidth": 1.2}
        self.figure.add_artist(FancyArrowPatch(*ends, transform=self.figure.transFigure, **style))
