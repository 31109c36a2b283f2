"""Pictures of masks for a page or a paper, from 8 tokens to a million, without a dense matrix.

The first picture loads matplotlib. Its global state stays untouched.
"""

from __future__ import annotations

import textwrap
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from longca.errors import MaskError, RequestError
from longca.masks import Mask
from longca_bench.reports.mask_raster import Raster, picture_block, rasterize
from longca_bench.reports.mask_text import caption, mask_title, token_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FULL", "HIDDEN", "PARTIAL", "check_block", "draw_mask", "paint", "write_figure"]

#: A fully visible block, the visible and the hidden pairs of a partly visible one, and the lines of documents.
FULL, PARTIAL, HIDDEN, RULE = "#1f3a5f", "#5b8db8", "#dfe7ee", "#c8553d"
_PAPER, _FRAME = "#ffffff", "#8a8f98"

#: The most cells with a grid between tokens, and the most documents that all get outlines.
_MOST_GRID_CELLS, _MOST_DOCUMENTS = 32, 24
#: The least ink of a cell with a visible pair, so that a thin band does not fade away.
_LEAST_INK = 0.3
#: The length, in inches, of a picture's longer side, and the most heads drawn side by side.
SIDE, MOST_HEADS = 3.0, 4
#: A mask far from square is drawn at most this much longer than wide.
_MOST_STRETCH = 4
#: Inches: beside a head, for title and legend, for a line of the caption.
_BESIDE, _AROUND, _LINE = 0.7, 1.15, 0.14
_FONT = 7.0


def draw_mask(mask: Mask, path: str | Path, *, block: int | None = None, dpi: float = 200) -> Path:
    """Draws a mask to a file. The first four heads of a mask are drawn.

    Args:
        mask: Any mask with at least one query and one key.
        path: A .png, .svg or .pdf file.
        block: Tokens a block. Full and partial blocks get other shades if they are large enough to be seen. None takes
            128, or fewer for short masks.
        dpi: Dots an inch of a .png, and of the raster in a .pdf or .svg.

    Returns:
        The path.

    Raises:
        MaskError: The mask has no queries or no keys, or the block is smaller than a token.
        RequestError: The file has another suffix, or it cannot be written.
    """
    if not mask.seqlen_q or not mask.seqlen_k:
        raise MaskError(f"there is nothing to draw of a {mask.label}: it has no queries or no keys")
    if block is not None:
        check_block(block)
    figure, panels = _panels(mask, dpi)
    for head, axes in enumerate(panels):
        raster = _draw_head(axes, mask, head, cells=round(SIDE * dpi), block=block)
        axes.set_title(f"keys, head {head}" if mask.heads > 1 else "keys", fontsize=_FONT + 0.5, pad=5)
    panels[0].set_ylabel("queries", fontsize=_FONT + 0.5, labelpad=3)
    _add_legend(panels[0], raster, loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=3)
    return write_figure(figure, path)


def check_block(block: int) -> None:
    """Refuses blocks that cannot be drawn.

    Args:
        block: Tokens a block.

    Raises:
        MaskError: The block is smaller than a token.
    """
    if block < 1:
        raise MaskError(f"blocks of {block} tokens cannot be drawn; take 1 or more")


def paint(raster: Raster) -> NDArray[np.uint8]:
    """A raster's colours: uint8 [rows, columns, 3]."""
    paper = np.array([_rgb(_PAPER), _rgb(HIDDEN), _rgb(_PAPER)])[raster.state]
    ink = np.array([_rgb(_PAPER), _rgb(PARTIAL), _rgb(FULL)])[raster.state]
    share = np.where(raster.shown > 0, _LEAST_INK + (1 - _LEAST_INK) * raster.shown, 0)[..., None]
    return np.rint(paper * (1 - share) + ink * share).astype(np.uint8)


def _draw_head(axes: Axes, mask: Mask, head: int, *, cells: int, block: int | None) -> Raster:
    """Draws one head of a mask as at most `cells` cells a side. The factors of the mask are marked."""
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
    _mark_factors(axes, mask)
    _set_ticks(axes, mask)
    return raster


def _mark_factors(axes: Axes, mask: Mask) -> None:
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
            axes.annotate(letter, (mask.seqlen_k, end), (3, 0), color=RULE, fontsize=_FONT, **place)


def outlined_documents(mask: Mask) -> list[tuple[int, int]]:
    """The start and stop of each document. Many documents leave out those with less than a fiftieth of all tokens."""
    lengths = mask.factors.get("documents", ())
    spans = [(end - length, end) for length, end in zip(lengths, accumulate(lengths), strict=True)]
    if len(spans) <= _MOST_DOCUMENTS:
        return spans
    return [(start, stop) for start, stop in spans if (stop - start) * 50 >= mask.seqlen_q]


def _set_ticks(axes: Axes, mask: Mask) -> None:
    for axis, seqlen in ((axes.xaxis, mask.seqlen_k), (axes.yaxis, mask.seqlen_q)):
        parts = 4 if seqlen % 4 == 0 and seqlen * 4 >= max(mask.seqlen_q, mask.seqlen_k) else 1
        ticks = [seqlen * part // parts for part in range(parts + 1)]
        axis.set_ticks(ticks, [token_count(t) for t in ticks])
    axes.tick_params(length=2.5, width=0.6, pad=2, labelsize=_FONT, color=_FRAME)
    axes.xaxis.tick_top()
    for spine in axes.spines.values():
        spine.set(color=_FRAME, linewidth=0.6)


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


def _panels(mask: Mask, dpi: float) -> tuple[Figure, list[Axes]]:
    """A figure with title and caption, and axes for each head."""
    from matplotlib.figure import Figure

    ratio = min(max(mask.seqlen_q / mask.seqlen_k, 1 / _MOST_STRETCH), _MOST_STRETCH)
    width, height = (SIDE, SIDE * ratio) if ratio <= 1 else (SIDE / ratio, SIDE)
    heads = min(mask.heads, MOST_HEADS)
    across = max(heads * (width + _BESIDE), SIDE + _BESIDE)
    lines = [*caption(mask), *([f"{heads} of {mask.heads} heads drawn"] if heads < mask.heads else [])]
    lines = [part for line in lines for part in textwrap.wrap(line, round(across * 15))]
    figure = Figure(figsize=(across, height + _AROUND + _LINE * len(lines)), dpi=dpi, layout="constrained")
    figure.suptitle(mask_title(mask), fontsize=10, parse_math=False)
    figure.supxlabel("\n".join(lines), fontsize=_FONT, linespacing=1.35, parse_math=False)
    panels = list(figure.subplots(1, heads, squeeze=False).flat)
    for axes in panels:
        axes.set_box_aspect(height / width)
    return figure, panels


def _add_legend(axes: Axes, raster: Raster, loc: Any, **where: Any) -> None:
    """Adds a legend of the shades if the picture has blocks."""
    if raster.block is None:
        return
    from matplotlib.patches import Patch

    shades = {f"full block of {raster.block}": FULL, "partial block: visible": PARTIAL, "partial block: hidden": HIDDEN}
    handles = [Patch(facecolor=shade, label=label) for label, shade in shades.items()]
    look = {"handlelength": 1, "handleheight": 1, "handletextpad": 0.5, "columnspacing": 1.2, "borderpad": 0}
    axes.legend(handles=handles, frameon=False, fontsize=_FONT, loc=loc, **look, **where)


def write_figure(figure: Figure, path: str | Path) -> Path:
    """Writes a figure without a date, so that the same contents give the same file.

    Args:
        figure: The figure.
        path: A .png, .svg or .pdf file.

    Raises:
        RequestError: The file has another suffix, or it cannot be written.
    """
    target = Path(path)
    metadata: dict[str, dict[str, Any]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    if (suffix := target.suffix.lower()) not in metadata:
        raise RequestError(f"pictures are drawn as {', '.join(metadata)}, not as {target.name!r}; rename it")
    try:
        figure.savefig(target, metadata=metadata[suffix])
    except OSError as error:
        raise RequestError(f"cannot write {str(target)!r}: {error.strerror}; choose another place") from error
    return target
