"""A mask as text: half blocks and shades for a terminal, with the caption of its picture."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from longca.errors import MaskError
from longca.masks import Mask
from longca_bench.reports.mask_caption import caption, mask_title
from longca_bench.reports.mask_raster import rasterize

__all__ = ["text_picture"]

#: By how much the upper and the lower half of a character show: 0 nothing, 1 some, 2 all.
_GLYPHS = np.array([[" ", "░", "▄"], ["░", "▒", "▓"], ["▀", "▓", "█"]])


def text_picture(mask: Mask, width: int = 64, height: int = 32) -> str:
    """A picture of a mask (of head 0, where heads differ) in a frame, queries down and keys across.

    Args:
        mask: Any mask with at least one query and one key.
        width: Characters across, the frame included.
        height: Lines of the picture, the frame included; title and caption come on top.

    Raises:
        MaskError: The mask has no queries or no keys, or there is no room for a picture.
    """
    if not mask.seqlen_q or not mask.seqlen_k:
        raise MaskError(f"there is nothing to draw of a {mask.label}: it has no queries or no keys")
    if width < 4 or height < 3:
        raise MaskError(f"a picture of {width} × {height} characters has no room inside; take at least 4 × 3")
    lines = ["".join(line) for line in _GLYPHS[tuple(_halves(mask, width - 2, 2 * (height - 2)))]]
    across = len(lines[0])
    title = mask_title(mask) + (f", head 0 of {mask.heads}" if mask.heads > 1 else "")
    framed = [f"┌{'─' * across}┐", *(f"│{line}│" for line in lines), f"└{'─' * across}┘"]
    return "\n".join([title, *framed, *caption(mask)])


def _halves(mask: Mask, columns: int, rows: int) -> NDArray[np.int8]:
    """What the upper and the lower half of each character show: int8 [2, lines, characters].

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
