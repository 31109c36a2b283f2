"""The picture of a strategy: the tokens and pairs of each rank, the transfers between calls, and a timeline.

`layout_scene.py` has the contents of the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.errors import RequestError
from longca_bench.reports.layout_arrangement import Arrangement
from longca_bench.reports.layout_drawing import (
    FONT,
    MUTED,
    Ink,
    Sheet,
    draw_grid,
    draw_matrix,
    draw_strip,
    draw_timeline,
)
from longca_bench.reports.layout_ranks import Arrow, draw_ranks
from longca_bench.reports.layout_scene import Panel, Scene, heads_words
from longca_bench.reports.layout_sizes import BETWEEN, STRIP, THIN, Sizes
from longca_bench.reports.mask_picture import checked_path, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MOST_RANKS", "check_ranks", "draw_layout", "write_picture"]

#: The most ranks and the most calls of a picture.
MOST_RANKS, MOST_CALLS = 16, 8
#: The strength of the colour of earlier calls, for dark and for light colours.
_EARLIER = (0.3, 0.42)

#: Inches: margins, the top of masks, gaps between columns, a lane of the timeline, its labels, and a grid's width.
_MARGIN, _TOP, _GAP, _LANE, _LABELS, _GRID = 0.08, 1.02, 0.2, 0.235, 0.66, 0.62
_BOLD: dict[str, Any] = {"fontsize": FONT + 0.5, "fontweight": "bold"}
#: The columns of a picture beside its calls.
_HELD, _EXCHANGED, _KEYS, _OUT, _AFTER = "q, k, v held", "exchanged", "held", "out", "at the end"


def write_picture(figure: Figure, path: str | Path) -> Path:
    """Writes a picture.

    Args:
        figure: The picture.
        path: The file, as .png, .svg or .pdf.

    Raises:
        RequestError: The file's name ends in something else, or it cannot be written.
    """
    return save_figure(figure, checked_path(path))


def check_ranks(ranks: int) -> None:
    """Refuses more ranks than a picture has room for.

    Raises:
        RequestError: There are more.
    """
    if ranks > MOST_RANKS:
        raise RequestError(
            f"a picture has room for {MOST_RANKS} ranks, and this mesh has {ranks}. Leave out --out for the numbers of "
            "all ranks, or draw fewer ranks"
        )


def draw_layout(arrangement: Arrangement) -> Figure:
    """The picture of an arrangement.

    Raises:
        RequestError: It has more ranks than a picture has room for.
    """
    check_ranks(arrangement.world_size)
    scene = Scene(arrangement)
    sizes, columns = Sizes.of(scene), _columns(scene)
    widths = [_width(kind, sizes) for kind in columns]
    slots = [max(width + STRIP + 0.05, sizes.line) + _GAP for width in widths]
    lanes = scene.lanes
    below = _TOP + sizes.area + 0.08
    time = below + sizes.ranks + 0.14
    left = _MARGIN + 0.14
    sheet = Sheet(left + sum(slots) + _MARGIN, time + _LANE * len(lanes) + 0.3)
    _draw_title(sheet, scene, left)
    for kind, width, slot in zip(columns, widths, slots, strict=True):
        _draw_column(sheet, scene, kind, left + slot / 2, width, sizes)
        if kind in (_EXCHANGED, _OUT):
            sheet.arrow(left - 0.1, left + 0.12, _TOP + sizes.area / 2)
        left += slot
    _draw_time(sheet, scene, lanes, time)
    return sheet.figure


def _columns(scene: Scene) -> list[str | int]:
    """The columns from left to right: tokens held, tokens exchanged, the calls, and the result."""
    count = len(scene.arrangement.calls)
    calls = list(range(count)) if count <= MOST_CALLS else [*range(MOST_CALLS - 1), count - 1]
    if scene.arrangement.splits_heads:
        return [_HELD, _EXCHANGED, *calls, _OUT]
    before = [_KEYS] if scene.arrows(0, beside=False) else []
    return [*before, *calls, *([_AFTER] if scene.arrows(count, beside=False) else [])]


def _width(kind: str | int, sizes: Sizes) -> float:
    return sizes.column if kind == _KEYS or isinstance(kind, int) else _GRID


def _draw_column(sheet: Sheet, scene: Scene, kind: str | int, middle: float, width: float, sizes: Sizes) -> None:
    """A column, and the ranks and their transfers below it."""
    place = middle - width / 2, _TOP
    if isinstance(kind, int):
        _draw_call(sheet, scene, kind, place, sizes)
    elif kind == _KEYS:
        _draw_keys(sheet, scene, place, sizes)
    elif kind == _AFTER:
        sheet.text(middle, _TOP - sizes.heading, kind, **_BOLD)
    else:
        _draw_held(sheet, scene, kind, place, sizes)
    arrows = _below(scene, kind)
    if arrows or isinstance(kind, int):
        axes = sheet.axes(middle - sizes.line / 2, _TOP + sizes.area + 0.08, sizes.line, sizes.ranks)
        chips = scene.chips(kind) if isinstance(kind, int) else {}
        draw_ranks(axes, sizes.seats, [scene.colour(rank) for rank in scene.ranks], chips, arrows)


def _below(scene: Scene, kind: str | int) -> list[Arrow]:
    if isinstance(kind, int):
        return [*(scene.arrows(kind, beside=False) if kind else []), *scene.arrows(kind, beside=True)]
    if kind in (_OUT, _AFTER):
        return scene.arrows(len(scene.arrangement.calls), beside=False)
    return scene.arrows(0, beside=False) if kind in (_HELD, _KEYS) else []


def _draw_title(sheet: Sheet, scene: Scene, left: float) -> None:
    made = scene.arrangement
    problem, sizes = made.problem, made.axis_sizes
    mesh = " × ".join(f"{axis} {size}" for axis, size in sizes.items())
    ranks = f"{made.world_size} ranks" + (f" ({mesh})" if len(sizes) > 1 else "")
    heads = f"{problem.heads_q}" if problem.heads_q == problem.heads_kv else f"{problem.heads_q}:{problem.heads_kv}"
    sheet.text(left, 0.17, made.title, fontsize=FONT + 3.5, ha="left", fontweight="bold")
    about = f"{ranks}, {heads} heads, {problem.concrete_mask.label}, {made.placement} placement, {problem.direction}"
    small: dict[str, Any] = {"color": MUTED, "ha": "left", "fontsize": FONT - 0.5}
    sheet.text(left, 0.37, about, **small)
    sheet.text(left, 0.52, _left_out(scene), **small)


def _left_out(scene: Scene) -> str:
    """The parts that a picture simplifies or leaves out, in words."""
    said = []
    if (tokens := scene.cells.tokens) > 1:
        said.append(f"cells are blocks of {tokens} tokens in the colour of the middle token's rank")
    if scene.arrangement.problem.concrete_mask.heads > 1:
        said.append("the mask is that of the first head")
    if (calls := len(scene.arrangement.calls)) > MOST_CALLS:
        said.append(f"{MOST_CALLS} of {calls} calls are drawn")
    if scene.arrangement.schedule is None:
        said.append("the strategy states no schedule, so no transfers are drawn")
    return ". ".join(text[0].upper() + text[1:] for text in said)


def _draw_call(sheet: Sheet, scene: Scene, call: int, place: tuple[float, float], sizes: Sizes) -> None:
    """The masks of one call: each rank's part in its colour, and earlier parts paler."""
    left, top = place
    words = f"step {scene.arrangement.calls[call].step}" if scene.is_step else f"call {call}"
    sheet.text(left + sizes.column / 2, top - sizes.heading, words, **_BOLD)
    for index, panel in enumerate(scene.panels(call)):
        x = left + index % sizes.across * (sizes.side + BETWEEN)
        y = top + index // sizes.across * (sizes.side + BETWEEN)
        _draw_panel(sheet, scene, panel, (x, y), sizes.side)
        sheet.text(x + sizes.side / 2, y - 0.1 - sizes.strips, heads_words(panel.heads), fontsize=FONT - 1, color=MUTED)
    if call == 0 and _KEYS not in _columns(scene):
        _draw_axes_words(sheet, (left, top), sizes.side)


def _draw_panel(sheet: Sheet, scene: Scene, panel: Panel, place: tuple[float, float], side: float) -> None:
    x, y = place
    group = list(scene.arrangement.axis_sizes.values())[-1] if len(scene.arrangement.axis_sizes) > 1 else 1
    inks = [
        Ink(scene.pairs(step), scene.colour(rank), _EARLIER[rank % group > 0])
        for rank, steps in panel.earlier.items()
        for step in steps
    ]
    inks += [Ink(scene.pairs(step), scene.colour(rank)) for rank, step in panel.steps.items()]
    draw_matrix(sheet.axes(x, y, side, side), scene.visible, inks)
    lines = scene.key_lines(panel)
    high = STRIP if len(lines) == 1 else STRIP * THIN
    for number, line in enumerate(reversed(lines)):
        draw_strip(sheet.axes(x, y - 0.02 - high * (number + 1), side, high), line)
    queries = scene.line({rank: step.q_ranges for rank, step in panel.steps.items()})
    draw_strip(sheet.axes(x - 0.02 - STRIP, y, STRIP, side), queries, down=True)


def _draw_axes_words(sheet: Sheet, place: tuple[float, float], side: float) -> None:
    """The directions of queries and keys in a mask."""
    x, y = place
    small = {"fontsize": FONT - 1.5, "color": MUTED}
    sheet.text(x - STRIP - 0.1, y + side / 2, "← queries", rotation=90, **small)
    sheet.text(x + side * 0.97, y + 0.1, "keys →", **small | {"ha": "right"})


def _draw_keys(sheet: Sheet, scene: Scene, place: tuple[float, float], sizes: Sizes) -> None:
    """Before any transfer: each rank's own queries and keys."""
    x, y = place
    draw_matrix(sheet.axes(x, y, sizes.side, sizes.side), scene.visible, [])
    draw_strip(sheet.axes(x, y - 0.02 - STRIP, sizes.side, STRIP), scene.owners)
    draw_strip(sheet.axes(x - 0.02 - STRIP, y, STRIP, sizes.side), scene.owners, down=True)
    sheet.text(x + sizes.side / 2, y - sizes.heading, _KEYS, **_BOLD)
    _draw_axes_words(sheet, place, sizes.side)


def _draw_held(sheet: Sheet, scene: Scene, kind: str, place: tuple[float, float], sizes: Sizes) -> None:
    """Tokens by heads, in the colour of the rank that has them."""
    (x, y), height = place, sizes.area
    heads = scene.arrangement.problem.heads_q
    colours = scene.by_heads() if kind == _EXCHANGED else [[colour or "white"] * heads for colour in scene.owners]
    draw_grid(sheet.axes(x, y, _GRID, height), colours)
    sheet.text(x + _GRID / 2, y - sizes.heading, kind, **_BOLD)
    small = {"fontsize": FONT - 1.5, "color": MUTED}
    sheet.text(x + _GRID / 2, y - 0.1, "heads →", **small)
    if kind == _HELD:
        sheet.text(x - 0.1, y + height / 2, "← tokens", rotation=90, **small)


def _draw_time(sheet: Sheet, scene: Scene, lanes: Sequence[str], top: float) -> None:
    start = _MARGIN + _LABELS
    axes = sheet.axes(start, top, sheet.width - start - 2 * _MARGIN, _LANE * len(lanes) + 0.06)
    draw_timeline(axes, lanes, scene.bars())
    words = "time on rank 0, not to scale" + ("; k and v in the colour of their owner" if scene.chips(0) else "")
    place = sheet.width - 2 * _MARGIN, top + _LANE * len(lanes) + 0.18
    sheet.text(*place, words, ha="right", fontsize=FONT - 1.5, color=MUTED)
