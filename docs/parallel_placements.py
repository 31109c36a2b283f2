"""A picture of the placements: which queries each rank holds, and how much of the mask that is."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from parallel_drawing import FONT, INK, MUTED, Ink, colour_of, draw_matrix, draw_strip
from parallel_scene import layout_text
from parallel_sheet import Sheet

from longca import masks, registry
from longca.errors import UnsupportedError
from longca.manifests import Device, Layout, Problem
from longca.masks import Mask
from longca_advice.nominal import imbalance

STRATEGY, RANKS, SEQLEN = "ring_p2p", 4, 512
_DOCUMENTS = (70, 190, 52, 120, 80)
#: What is drawn: a mask and how it is called.
SHOWN: dict[str, dict[str, Any]] = {
    "causal": {},
    "causal_document": {"documents": _DOCUMENTS},
    "shared_question": {"documents": (130, 150, 92, 140)},
}
_SIDE, _GAP, _STRIP, _BAR, _LEFT, _TOP = 1.3, 0.34, 0.075, 0.42, 0.42, 0.6


def problem_of(pattern: str) -> Problem:
    """One of the masks."""
    mask = masks.build(pattern, SEQLEN, **SHOWN[pattern])
    return Problem(mask=mask, heads_q=8, heads_kv=8, device=Device("cpu"))


def layouts(pattern: str) -> dict[str, Layout | None]:
    """The layout by each placement; None where the mask is none for it."""
    found: dict[str, Layout | None] = {}
    for placement in registry().strategy(STRATEGY).placements:
        try:
            found[placement] = registry().layout(STRATEGY, problem_of(pattern), {"ring": RANKS}, placement)
        except UnsupportedError:
            found[placement] = None
    return found


def digest() -> str:
    """A hash of all that the picture is made of."""
    found = {pattern: [f"{name!r}: {layout_text(one)}" for name, one in layouts(pattern).items()] for pattern in SHOWN}
    text = "{" + ", ".join(f"{pattern!r}: {{{', '.join(ones)}}}" for pattern, ones in found.items()) + "}"
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def draw() -> Figure:
    """A row a mask, a column a placement."""
    placements = registry().strategy(STRATEGY).placements
    row = _SIDE + _BAR + 0.52
    sheet = Sheet(_LEFT + len(placements) * (_SIDE + _GAP) + 0.1, _TOP + len(SHOWN) * row - 0.02)
    for column, placement in enumerate(placements):
        middle = _LEFT + column * (_SIDE + _GAP) + _SIDE / 2
        sheet.text(middle, 0.2, placement, fontsize=FONT + 1.5, fontweight="bold")
    for line, pattern in enumerate(SHOWN):
        top = _TOP + line * row
        sheet.text(0.13, top + _SIDE / 2, pattern, rotation=90, fontsize=FONT + 1.5, fontweight="bold")
        for column, (_, layout) in enumerate(layouts(pattern).items()):
            left = _LEFT + column * (_SIDE + _GAP)
            if layout is None:
                words = "needs documents"
                sheet.text(left + _SIDE / 2, top + _SIDE / 2, words, color=MUTED)
            else:
                _draw_one(sheet, problem_of(pattern), layout, left, top)
    return sheet.figure


def _draw_one(sheet: Sheet, problem: Problem, layout: Layout, left: float, top: float) -> None:
    visible = problem.concrete_mask.dense()
    owners = np.empty(SEQLEN, np.int64)
    for rank in range(RANKS):
        owners[layout.positions(rank)] = rank
    inks = [Ink(visible & (owners == rank)[:, None], colour_of(rank)) for rank in range(RANKS)]
    draw_matrix(sheet.axes(left, top, _SIDE, _SIDE), visible, inks)
    colours = [colour_of(rank) for rank in owners.tolist()]
    draw_strip(sheet.axes(left - 0.02 - _STRIP, top, _STRIP, _SIDE), colours, down=True)
    _draw_shares(sheet, problem, layout, left, top + _SIDE + 0.12)


def _draw_shares(sheet: Sheet, problem: Problem, layout: Layout, left: float, top: float) -> None:
    """A bar a rank: its visible pairs, and a line where all would have as many."""
    areas = [_area(problem.concrete_mask, layout, rank) for rank in range(RANKS)]
    mean = sum(areas) / RANKS
    axes = sheet.axes(left, top, _SIDE, _BAR)
    axes.bar(
        range(RANKS), [area / mean for area in areas], color=[colour_of(rank) for rank in range(RANKS)], width=0.72
    )
    axes.axhline(1, color=INK, linewidth=0.7, linestyle=(0, (3, 2)))
    axes.set(xlim=(-0.6, RANKS - 0.4), ylim=(0, 2), xticks=[], yticks=[])
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set(color=MUTED, linewidth=0.6)
    words = f"busiest rank: {imbalance(problem, layout):.2f} of the mean"
    sheet.text(left + _SIDE / 2, top + _BAR + 0.1, words, fontsize=FONT - 1, color=MUTED)


def _area(mask: Mask, layout: Layout, rank: int) -> int:
    return mask.cut(layout.shards[rank], ((0, SEQLEN),)).area
