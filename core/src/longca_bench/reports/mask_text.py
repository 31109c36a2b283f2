"""A mask as text: its caption in words, and a picture of characters for a terminal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from longca.errors import MaskError
from longca.masks import PATTERNS, Mask
from longca_bench.reports.mask_raster import rasterize

__all__ = ["caption", "mask_title", "text_picture", "token_count"]

#: Characters by the share that the upper and the lower half show: 0 nothing, 1 some, 2 all.
_GLYPHS = np.array([[" ", "░", "▄"], ["░", "▒", "▓"], ["▀", "▓", "█"]])


def caption(mask: Mask) -> list[str]:
    """The lines beside a picture: size, factors, area, density and tile efficiency at 128."""
    over = f" over {mask.heads} heads" if mask.heads > 1 else ""
    return [
        mask.description,
        f"area {mask.area:,}{over}",
        f"density {_percent(mask.density)}, tile efficiency at 128: {_percent(mask.tile_efficiency(128, 128))}",
    ]


def mask_title(mask: Mask) -> str:
    """The title of the mask's pattern."""
    pattern = PATTERNS.get(mask.pattern or "")
    return pattern.title if pattern else mask.pattern or "Mask"


def token_count(tokens: int) -> str:
    """A number of tokens for an axis, in K or M if it is a multiple of half a K or M."""
    for unit, letter in ((2**20, "M"), (2**10, "K")):
        if tokens >= unit and tokens * 2 % unit == 0:
            return f"{tokens / unit:g} {letter}"
    return f"{tokens:,}"


def text_picture(mask: Mask, width: int = 64, height: int = 32) -> str:
    """A picture of a mask's first head in a frame of characters, queries down and keys across, in its caption.

    Raises:
        MaskError: The mask has no queries or no keys, or the picture has no room.
    """
    if not mask.seqlen_q or not mask.seqlen_k:
        raise MaskError(f"there is nothing to draw of a {mask.label}: it has no queries or no keys")
    if width < 4 or height < 3:
        raise MaskError(f"a picture of {width} × {height} characters has no room inside; take at least 4 × 3")
    lines = ["".join(line) for line in _GLYPHS[tuple(_halves(mask, width - 2, 2 * (height - 2)))]]
    across = len(lines[0])
    first, *below = caption(mask)
    title = first + (f"; this is head 0 of {mask.heads}" if mask.heads > 1 else "")
    framed = [f"┌{'─' * across}┐", *(f"│{line}│" for line in lines), f"└{'─' * across}┘"]
    return "\n".join([title, *framed, *below])


def _halves(mask: Mask, columns: int, rows: int) -> NDArray[np.int8]:
    """The level of the upper and the lower half of each character: int8 [2, lines, characters].

    A half is about as high as it is wide, so tokens stay square.
    """
    longest = max(mask.seqlen_q * columns, mask.seqlen_k * rows)
    cells = max(mask.seqlen_q, mask.seqlen_k) * columns * rows // longest
    shown = rasterize(mask, max(1, cells)).shown
    level = np.where(shown == 0, 0, np.where(shown == 1, 2, 1)).astype(np.int8)
    times = max(1, min(columns // level.shape[1], rows // level.shape[0]))
    level = level.repeat(times, axis=0).repeat(times, axis=1)
    level = np.pad(level, ((0, len(level) % 2), (0, 0)))
    return np.stack([level[::2], level[1::2]])


def _percent(share: float) -> str:
    """A percentage with one decimal. Shares below 0.1 % get two digits, and only all is 100 %."""
    if 0 < share < 0.001:
        return f"{share * 100:.2g} %"
    return "> 99.9 %" if 0.9995 <= share < 1 else f"{share * 100:.1f} %"
