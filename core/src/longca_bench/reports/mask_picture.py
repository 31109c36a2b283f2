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

__all__ = ["FULL", "HIDDEN", "PARTIAL", "draw_mask", "paint", "write_figure"]

#: A fully visible block, the visible and the hidden pairs of a partly visible one, and the lines of documents.
FULL, PARTIAL, HIDDEN, RULE = "#1f3a5f", "#5b8db8", "#dfe7ee", "#c8553d"
_PAPER, _FRAME, _FONT = "#ffffff", "#8a8f98", 7.0
#: The least ink of a cell with a visible pair, so that a thin band does not fade away.
_LEAST_INK = 0.3
#: The length, in inches, of a picture's longer side, the most that it is longer than wide, and the most heads drawn.
SIDE, _MOST_STRETCH, MOST_HEADS = 3.0, 4, 4
#: Inches: beside a head, for title and legend, for a line of the caption.
_BESIDE, _AROUND, _LINE = 0.7, 1.15, 0.14


def draw_mask(mask: Mask, path: str | Path, *, block: int | None = None, dpi: float = 200) -> Path:
    """Draws the first four heads of a mask to a .png, .svg or .pdf file.

    Args:
        mask: Any mask with at least one query and one key.
        path: The file.
        block: Tokens a block. Full and partial blocks get other shades if they are large enough to be seen. None takes
            128, or fewer for short masks.
        dpi: Dots an inch of a .png, and of the raster in a .pdf or .svg.

    Raises:
        MaskError: The mask has no queries or no keys, or the block is smaller than a token.
        RequestError: The file has another suffix, or it cannot be written.
    """
    if not mask.seqlen_q or not mask.seqlen_k:
        raise MaskError(f"there is nothing to draw of a {mask.label}: it has no queries or no keys")
    if block is not None and block < 1:
        raise MaskError(f"blocks of {block} tokens cannot be drawn; take 1 or more")
    figure, panels = _panels(mask, dpi)
    for head, axes in enumerate(panels):
        size = picture_block(max(mask.seqlen_q, mask.seqlen_k), block)
        raster = rasterize(mask, round(SIDE * dpi), size, head)
        rows, columns = raster.shown.shape
        axes.imshow(
            paint(raster),
            extent=(0, columns * raster.cell, rows * raster.cell, 0),
            interpolation="nearest" if max(rows, columns) * 2 < round(SIDE * dpi) else "auto",
            aspect="auto",
        )
        axes.set(xlim=(0, mask.seqlen_k), ylim=(mask.seqlen_q, 0))
        _mark_factors(axes, mask)
        _set_ticks(axes, mask)
        axes.set_title(f"keys, head {head}" if mask.heads > 1 else "keys", fontsize=_FONT + 0.5, pad=5)
    panels[0].set_ylabel("queries", fontsize=_FONT + 0.5, labelpad=3)
    if raster.block is not None:
        _add_legend(panels[0], raster.block)
    return write_figure(figure, path)


def paint(raster: Raster) -> NDArray[np.uint8]:
    """A raster's colours: uint8 [rows, columns, 3]."""
    paper = np.array([_rgb(_PAPER), _rgb(HIDDEN), _rgb(_PAPER)])[raster.state]
    ink = np.array([_rgb(_PAPER), _rgb(PARTIAL), _rgb(FULL)])[raster.state]
    share = np.where(raster.shown > 0, _LEAST_INK + (1 - _LEAST_INK) * raster.shown, 0)[..., None]
    return np.rint(paper * (1 - share) + ink * share).astype(np.uint8)


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


def _mark_factors(axes: Axes, mask: Mask) -> None:
    """Draws a square around each long document, and lines at the end of a prefix or of the global tokens."""
    from matplotlib.collections import LineCollection

    rule: dict[str, Any] = {"color": RULE, "linewidth": 0.6, "alpha": 0.8}
    lengths = mask.factors.get("documents", ())
    spans = zip(accumulate(lengths, initial=0), accumulate(lengths), strict=False)
    squares = [[(a, a), (b, a), (b, b), (a, b), (a, a)] for a, b in spans if (b - a) * 50 >= mask.seqlen_q]
    axes.add_collection(LineCollection(squares, **rule), autolim=False)
    for name in ("prefix", "global_tokens"):
        end = mask.factors.get(name, 0)
        if not lengths and 0 < end < mask.seqlen_q:
            axes.axvline(end, linestyle=(0, (3, 2)), **rule)
            axes.axhline(end, linestyle=(0, (3, 2)), **rule)


def _set_ticks(axes: Axes, mask: Mask) -> None:
    for axis, seqlen in ((axes.xaxis, mask.seqlen_k), (axes.yaxis, mask.seqlen_q)):
        parts = 4 if seqlen % 4 == 0 and seqlen * 4 >= max(mask.seqlen_q, mask.seqlen_k) else 1
        ticks = [seqlen * part // parts for part in range(parts + 1)]
        axis.set_ticks(ticks, [token_count(t) for t in ticks])
    axes.tick_params(length=2.5, width=0.6, pad=2, labelsize=_FONT, color=_FRAME)
    axes.xaxis.tick_top()
    axes.spines[:].set(color=_FRAME, linewidth=0.6)


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
    panels = list(figure.subplots(1, heads, squeeze=False, subplot_kw={"box_aspect": height / width}).flat)
    return figure, panels


def _add_legend(axes: Axes, block: int) -> None:
    """Adds the meaning of the shades of blocks."""
    from matplotlib.patches import Patch

    shades = {f"full block of {block}": FULL, "partial block: visible": PARTIAL, "partial block: hidden": HIDDEN}
    handles = [Patch(facecolor=shade, label=label) for label, shade in shades.items()]
    look: dict[str, Any] = {"handlelength": 1, "handleheight": 1, "handletextpad": 0.5, "borderpad": 0}
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.02), "ncols": 3, "columnspacing": 1.2}
    axes.legend(handles=handles, frameon=False, fontsize=_FONT, **look, **place)


def write_figure(figure: Figure, path: str | Path) -> Path:
    """Writes a figure to a .png, .svg or .pdf file without a date: the same contents give the same file.

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
