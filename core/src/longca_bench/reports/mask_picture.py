"""Pictures of masks for a page or a paper, from 8 tokens to a million, without a dense matrix.

The first picture loads matplotlib. Its global state stays untouched.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.errors import MaskError, RequestError
from longca.masks import PATTERNS, Mask, sample
from longca_bench.reports.mask_axes import FULL, HIDDEN, PARTIAL, draw_on_axes
from longca_bench.reports.mask_raster import Raster
from longca_bench.reports.mask_text import caption, mask_title, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["SUFFIXES", "check_block", "draw_contact_sheet", "draw_mask"]

SUFFIXES = (".png", ".svg", ".pdf")

#: The length, in inches, of a picture's longer side, and the most heads drawn side by side.
SIDE, MOST_HEADS = 3.0, 4
#: A mask far from square is drawn at most this much longer than wide.
_MOST_STRETCH = 4
#: Inches: beside a head, for title and legend, for a line of the caption.
_BESIDE, _AROUND, _LINE = 0.7, 1.15, 0.14
_FONT = 7.0

#: The contact sheet's factors. Few documents and blocks show the structure of each pattern.
SHEET_SEQLEN, SHEET_BLOCK, SHEET_COLUMNS = 8192, 256, 5
_SHEET_FACTORS: dict[str, Any] = {
    "documents": (1100, 2300, 700, 2600, 1492),
    "window": 900,
    "prefix": 500,
    "block": 640,
    "global_tokens": 700,
    "boundaries": (0, 300, 1150, 1400, 2500, 2900, 3700, 4000, 4900, 5300, 6500, 6700, 7400, 8192),
    "kept": 0.4,
}


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
    target = checked_path(path)
    if not mask.seqlen_q or not mask.seqlen_k:
        raise MaskError(f"there is nothing to draw of a {mask.label}: it has no queries or no keys")
    if block is not None:
        check_block(block)
    figure, panels = _panels(mask, dpi)
    for head, axes in enumerate(panels):
        raster = draw_on_axes(axes, mask, head, cells=round(SIDE * dpi), block=block, font_size=_FONT)
        axes.set_title(f"keys, head {head}" if mask.heads > 1 else "keys", fontsize=_FONT + 0.5, pad=5)
    panels[0].set_ylabel("queries", fontsize=_FONT + 0.5, labelpad=3)
    _add_legend(panels[0], raster, loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=3)
    return save_figure(figure, target)


def check_block(block: int) -> None:
    """Refuses blocks that cannot be drawn.

    Args:
        block: Tokens a block.

    Raises:
        MaskError: The block is smaller than a token.
    """
    if block < 1:
        raise MaskError(f"blocks of {block} tokens cannot be drawn; take 1 or more")


def draw_contact_sheet(path: str | Path, *, dpi: float = 150) -> Path:
    """Draws one mask of each registered pattern for the documentation, static patterns first.

    Args:
        path: A .png, .svg or .pdf file.
        dpi: Dots an inch.

    Raises:
        RequestError: The file has another suffix, or it cannot be written.
    """
    from matplotlib.figure import Figure

    target = checked_path(path)
    patterns = sorted(PATTERNS.values(), key=lambda pattern: pattern.per_head)
    rows = -(-(len(patterns) + 1) // SHEET_COLUMNS)  # one place for the legend
    figure = Figure(figsize=(2.0 * SHEET_COLUMNS, 2.32 * rows), dpi=dpi)
    margins = {"left": 0.015, "right": 0.98, "top": 0.955, "bottom": 0.06, "wspace": 0.14, "hspace": 0.38}
    places = list(figure.subplots(rows, SHEET_COLUMNS, gridspec_kw=margins).flat)
    for axes, pattern in zip(places, patterns, strict=False):
        given = {name: value for name, value in _SHEET_FACTORS.items() if name in pattern.factors}
        mask = sample(pattern.name, SHEET_SEQLEN, **given)
        raster = draw_on_axes(axes, mask, 0, cells=round(1.7 * dpi), block=SHEET_BLOCK, font_size=_FONT)
        axes.set(xticks=[], yticks=[], box_aspect=1)
        axes.set_title(pattern.title, fontsize=_FONT + 2, pad=4, parse_math=False)
        axes.set_xlabel(_sheet_words(mask), fontsize=_FONT, labelpad=4, parse_math=False)
    for axes in places[len(patterns) :]:
        axes.set_axis_off()
    rest = places[len(patterns)]
    _add_legend(rest, raster, loc="upper left", borderaxespad=0)
    note = f"{SHEET_SEQLEN:,} queries (down)\nand keys (across);\ndocuments outlined,\np prefix, g global tokens"
    rest.text(0, 0.55, note, fontsize=_FONT, va="top", linespacing=1.5)
    return save_figure(figure, target)


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


def _sheet_words(mask: Mask) -> str:
    """The factors of a small picture, and its density."""
    told = {
        name: value for name, value in mask.factors.items() if name in ("window", "prefix", "block", "global_tokens")
    }
    words = [f"{name.replace('_tokens', '')} {value:,}" for name, value in told.items()]
    density = f"{percent(mask.density)} visible"
    return "\n".join([", ".join(words), density]) if len(words) > 1 else ", ".join([*words, density])


def _add_legend(axes: Axes, raster: Raster, loc: Any, **where: Any) -> None:
    """Adds a legend of the shades if the picture has blocks."""
    if raster.block is None:
        return
    from matplotlib.patches import Patch

    shades = {f"full block of {raster.block}": FULL, "partial block: visible": PARTIAL, "partial block: hidden": HIDDEN}
    handles = [Patch(facecolor=shade, label=label) for label, shade in shades.items()]
    look = {"handlelength": 1, "handleheight": 1, "handletextpad": 0.5, "columnspacing": 1.2, "borderpad": 0}
    axes.legend(handles=handles, frameon=False, fontsize=_FONT, loc=loc, **look, **where)


def checked_path(path: str | Path) -> Path:
    """A path for a picture.

    Raises:
        RequestError: The file has another suffix.
    """
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise RequestError(f"pictures are drawn as {', '.join(SUFFIXES)}, not as {target.name!r}; rename it")
    return target


def save_figure(figure: Figure, target: Path) -> Path:
    """Writes a figure without a date, so that the same contents give the same file.

    Args:
        figure: The figure.
        target: A file whose suffix `checked_path` accepts.

    Raises:
        RequestError: The file cannot be written.
    """
    metadata: dict[str, dict[str, Any]] = {
        ".png": {},
        ".svg": {"Date": None},
        ".pdf": {"CreationDate": None},
    }
    try:
        figure.savefig(target, metadata=metadata[target.suffix.lower()])
    except OSError as error:
        raise RequestError(f"cannot write {str(target)!r}: {error.strerror}; choose another place") from error
    return target
