"""One mask in one pair of axes: queries down, keys across, and a shade for full, partial and empty blocks.

The shades differ in grey too. In a partial block the hidden pairs are tinted, because a tiled kernel computes them in
vain.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from longca.masks import Mask
from longca_bench.reports.mask_raster import Raster, picture_block, rasterize
from longca_bench.reports.mask_text import token_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FULL", "HIDDEN", "PARTIAL", "RULE", "draw_on_axes", "outlined_documents", "paint"]

#: A fully visible block, the visible and the hidden pairs of a partly visible one, and the lines of documents.
FULL, PARTIAL, HIDDEN, RULE = "#1f3a5f", "#5b8db8", "#dfe7ee", "#c8553d"
_PAPER, _FRAME = "#ffffff", "#8a8f98"

#: The most cells with a grid between tokens, and the most documents that all get outlines.
_MOST_GRID_CELLS, _MOST_DOCUMENTS = 32, 24
#: The least ink of a cell with a visible pair, so that a thin band does not fade away.
_LEAST_INK = 0.3


def paint(raster: Raster) -> NDArray[np.uint8]:
    """A raster's colours: uint8 [rows, columns, 3]."""
    paper = np.array([_rgb(_PAPER), _rgb(HIDDEN), _rgb(_PAPER)])[raster.state]
    ink = np.array([_rgb(_PAPER), _rgb(PARTIAL), _rgb(FULL)])[raster.state]
    share = np.where(raster.shown > 0, _LEAST_INK + (1 - _LEAST_INK) * raster.shown, 0)[..., None]
    return np.rint(paper * (1 - share) + ink * share).astype(np.uint8)


def draw_on_axes(axes: Axes, mask: Mask, head: int, *, cells: int, block: int | None, font_size: float) -> Raster:
    """Draws one head of a mask.

    Args:
        axes: The axes.
        mask: The mask, whose factors are marked.
        head: The head to draw.
        cells: The most cells a side.
        block: Tokens a block. None chooses by the length.
        font_size: Size of the tick labels, in points.

    Returns:
        The raster of the picture.
    """
    longest = max(mask.seqlen_q, mask.seqlen_k)
    raster = rasterize(mask, cells, picture_block(longest, block), head)
    rows, columns = raster.shown.shape
    axes.imshow(
        paint(raster),
        extent=(0, columns * raster.cell, rows * raster.cell, 0),
        interpolation="nearest" if max(rows, columns) * 2 < cells else "auto",
        aspect="auto",
    )
    axes.set(xlim=(0, mask.seqlen_k), ylim=(mask.seqlen_q, 0))
    if raster.cell == 1 and longest <= _MOST_GRID_CELLS:
        grid: dict[str, Any] = {"color": _PAPER, "linewidth": 0.8}
        axes.vlines(np.arange(1, mask.seqlen_k), 0, mask.seqlen_q, **grid)
        axes.hlines(np.arange(1, mask.seqlen_q), 0, mask.seqlen_k, **grid)
    _mark_factors(axes, mask, font_size)
    _set_ticks(axes, mask, font_size)
    return raster


def _mark_factors(axes: Axes, mask: Mask, font_size: float) -> None:
    """Draws a square around each document, and lines at the end of a prefix or of the global tokens."""
    from matplotlib.collections import LineCollection

    rule: dict[str, Any] = {"color": RULE, "linewidth": 0.6, "alpha": 0.8}
    squares = [[(a, a), (b, a), (b, b), (a, b), (a, a)] for a, b in outlined_documents(mask)]
    axes.add_collection(LineCollection(squares, **rule), autolim=False)
    for name, letter in (("prefix", "p"), ("global_tokens", "g")):
        end = mask.factors.get(name, 0)
        if "documents" not in mask.factors and 0 < end < mask.seqlen_q:
            axes.axvline(end, linestyle=(0, (3, 2)), **rule)
            axes.axhline(end, linestyle=(0, (3, 2)), **rule)
            place: dict[str, Any] = {"textcoords": "offset points", "va": "center", "ha": "left"}
            axes.annotate(letter, (mask.seqlen_k, end), (3, 0), color=RULE, fontsize=font_size, **place)


def outlined_documents(mask: Mask) -> list[tuple[int, int]]:
    """The start and stop of each document. Many documents leave out those with less than a fiftieth of all tokens."""
    lengths = mask.factors.get("documents", ())
    spans = [(end - length, end) for length, end in zip(lengths, accumulate(lengths), strict=True)]
    if len(spans) <= _MOST_DOCUMENTS:
        return spans
    return [(start, stop) for start, stop in spans if (stop - start) * 50 >= mask.seqlen_q]


def _set_ticks(axes: Axes, mask: Mask, font_size: float) -> None:
    for axis, seqlen in ((axes.xaxis, mask.seqlen_k), (axes.yaxis, mask.seqlen_q)):
        parts = 4 if seqlen % 4 == 0 and seqlen * 4 >= max(mask.seqlen_q, mask.seqlen_k) else 1
        ticks = [seqlen * part // parts for part in range(parts + 1)]
        axis.set_ticks(ticks, [token_count(t) for t in ticks])
    axes.tick_params(length=2.5, width=0.6, pad=2, labelsize=font_size, color=_FRAME)
    axes.xaxis.tick_top()
    for spine in axes.spines.values():
        spine.set(color=_FRAME, linewidth=0.6)


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))
