"""Pictures of strategies: the tokens and pairs of each rank in each call, and placements side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from longca.errors import RequestError
from longca.manifests.steps import Ranges, Step
from longca_bench.reports.layout_arrangement import Arrangement
from longca_bench.reports.mask_raster import rasterize

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["CELLS", "draw_layout", "draw_placements"]

#: The most cells a side of a mask, the most ranks and panels of a picture, and the panels of one row.
CELLS, MOST_RANKS, MOST_PANELS, _ACROSS = 512, 16, 16, 4
#: The dark and the light end of each hue.
_HUES = (
    ("#2f6db3", "#8fbbe8"), ("#d9652b", "#f5b48d"), ("#2e8b63", "#8dd0b0"), ("#8e4aa8", "#cda3dd"),
    ("#b03a5b", "#e5a3b5"), ("#6b7f1e", "#c3d17f"), ("#1f8a99", "#8fd3dc"), ("#7a5a3c", "#cdb49c"),
)  # fmt: skip
_WHITE, _GREY, _FRAME = np.ones(3), np.array(to_rgb("#e4e7ec")), "#7a828c"
_EARLIER = 0.35  # the strength of the colour of earlier calls
_SMALL = 4  # a transfer this many times smaller than the largest of its axis is not named
_FONT, _SMALL_FONT = 8.0, 6.5

Colours = NDArray[np.float64]


class _Scene:
    """An arrangement in cells of tokens and colours of ranks."""

    def __init__(self, made: Arrangement) -> None:
        self.made, self.seqlen = made, made.layout.num_tokens
        self.tokens = -(-self.seqlen // CELLS)  # tokens a cell
        self.count = -(-self.seqlen // self.tokens)
        self.held = self.strip(enumerate(made.layout.shards))

    @cached_property
    def visible(self) -> NDArray[np.bool_]:
        """The cells with a visible pair, in the first head: [queries, keys]."""
        return rasterize(self.made.problem.concrete_mask, CELLS).shown > 0

    def cells(self, ranges: Ranges) -> NDArray[np.bool_]:
        """The cells whose middle token lies in ranges of tokens: [cells]."""
        middles = np.minimum(np.arange(self.count) * self.tokens + self.tokens // 2, self.seqlen - 1)
        return np.any([(middles >= start) & (middles < stop) for start, stop in ranges] or [middles < 0], axis=0)

    def colour(self, rank: int) -> Colours:
        """A rank's colour: a hue for each innermost group of ranks, and a shade for each member."""
        sizes, ranks = list(self.made.axis_sizes.values()), self.made.layout.world_size
        group = sizes[-1] if len(sizes) > 1 else 1
        place, number = divmod(rank, group)
        shades = -(-ranks // group // len(_HUES)) * group
        share = (place // len(_HUES) * group + number) / (shades - 1) if shades > 1 else 0.0
        dark, light = (np.array(to_rgb(end)) for end in _HUES[place % len(_HUES)])
        return np.asarray(dark + (light - dark) * share)

    def strip(self, ranges: Iterable[tuple[int, Ranges]]) -> Colours:
        """Cells in the colour of the rank that has them: [cells, 3]."""
        line = np.ones((self.count, 3))
        for rank, some in ranges:
            line[self.cells(some)] = self.colour(rank)
        return line

    def paint(self, painted: Colours, rank: int, step: Step, strength: float) -> None:
        """Paints the visible cells of a step in the colour of its rank."""
        pairs = self.visible & np.outer(self.cells(step.q_ranges), self.cells(step.k_ranges))
        painted[pairs] = strength * self.colour(rank) + (1 - strength) * _WHITE

    def steps(self, call: int) -> dict[tuple[int, int], dict[int, Step]]:
        """The steps of a call by their query heads and ranks."""
        found: dict[tuple[int, int], dict[int, Step]] = {}
        for rank in range(self.made.layout.world_size):
            if (step := self.made.step(rank, call)) is not None:
                found.setdefault(step.heads_q, {})[rank] = step
        return dict(sorted(found.items()))

    def moves(self, call: int) -> list[str]:
        """The large transfers before a call, beside it, and behind the last one, in words."""
        made, found, most = self.made, [], dict[str, int]()
        for move, *_ in made.transfers:
            most[move.axis] = max(most.get(move.axis, 0), move.sent)
        for move, at, beside in made.transfers:
            if min(at, len(made.calls) - 1) == call and move.sent * _SMALL > most[move.axis]:
                when = "beside" if beside else "before" if at == call else "after"
                what = f"{move.carries or 'tensors'} by {move.kind.replace('_', '-')} along {move.axis}"
                found.append(f"{when} it: {what}")
        return list(dict.fromkeys(found))


def draw_layout(made: Arrangement) -> Figure:
    """The picture of an arrangement: the tokens and pairs of each rank, a panel for each call and its heads.

    Raises:
        RequestError: It has more ranks than a picture has room for.
    """
    _check_ranks(made.layout.world_size)
    scene = _Scene(made)
    panels = [(call, heads, steps) for call in range(len(made.calls)) for heads, steps in scene.steps(call).items()]
    held, exchanged = (np.array(scene.held[:, None].repeat(made.problem.heads_q, 1)) for _ in range(2))
    for rank, own in enumerate(made.layout.steps):
        for step in own:
            exchanged[scene.cells(step.q_ranges), slice(*step.heads_q)] = scene.colour(rank)
    grids = {} if np.array_equal(held, exchanged) else {"q, k, v held": held, "exchanged": exchanged}
    shown = panels[:MOST_PANELS]
    number = len(grids) + len(shown)
    down, across = -(-number // _ACROSS), min(number, _ACROSS)
    figure = Figure(figsize=(max(2.1 * across, 5.5), 2.3 * down + 0.9), dpi=200, layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for each in axes[number:]:
        each.set_axis_off()
    for each, (name, grid) in zip(axes, grids.items(), strict=False):
        _draw_grid(each, name, grid)
    for each, (call, heads, steps) in zip(axes[len(grids) :], shown, strict=False):
        _draw_call(each, scene, call, heads, steps)
    left = len(panels) - len(shown)
    title = [part for line in _title(scene, left) for part in textwrap.wrap(line, round(figure.get_figwidth() * 15))]
    figure.suptitle("\n".join(title), fontsize=_FONT, x=0.01, ha="left", parse_math=False)
    ranks = [Patch(color=tuple(scene.colour(rank)), label=f"rank {rank}") for rank in range(made.layout.world_size)]
    below: dict[str, Any] = {"loc": "outside lower center", "ncols": min(8, len(ranks))}
    figure.legend(handles=ranks, fontsize=_SMALL_FONT, frameon=False, **below)
    return figure


def draw_placements(found: Mapping[str, Arrangement | str]) -> Figure:
    """A picture for each placement: the queries and the share of each rank. A text stands for no layout.

    Raises:
        RequestError: There are more ranks than a picture has room for.
    """
    _check_ranks(max((made.layout.world_size for made in found.values() if isinstance(made, Arrangement)), default=0))
    figure = Figure(figsize=(1.8 * len(found) + 0.3, 2.9), dpi=200, layout="constrained")
    masks, shares = figure.subplots(2, len(found), squeeze=False, gridspec_kw={"height_ratios": [3, 1]})
    for (name, made), mask, share in zip(found.items(), masks, shares, strict=True):
        mask.set_title(name, fontsize=_FONT, parse_math=False)
        if isinstance(made, str):
            for axes in (mask, share):
                axes.set_axis_off()
            mask.text(0.5, 0.5, "not for this mask", ha="center", color=_FRAME, fontsize=_FONT)
            continue
        scene = _Scene(made)
        _show(mask, np.where(scene.visible[..., None], scene.held[:, None], _WHITE), scene.held)
        mean = sum(made.pairs) / len(made.pairs) or 1.0
        colours = [tuple(scene.colour(rank)) for rank in range(len(made.pairs))]
        share.bar(range(len(colours)), [pairs / mean for pairs in made.pairs], color=colours)
        share.axhline(1, color="black", linewidth=0.7, linestyle=(0, (3, 2)))
        share.set(ylim=(0, max(2.0, made.imbalance)), xticks=[], yticks=[])
        share.set_xlabel(f"busiest rank: {made.imbalance:.2f} of the mean", fontsize=_SMALL_FONT)
        share.spines[["top", "right", "left"]].set_visible(False)
    return figure


def _check_ranks(ranks: int) -> None:
    if ranks > MOST_RANKS:
        raise RequestError(
            f"a picture has room for {MOST_RANKS} ranks, and this mesh has {ranks}. Leave out --out for the numbers of "
            "all ranks, or draw fewer ranks"
        )


def _title(scene: _Scene, left: int) -> list[str]:
    """The title, and the parts that a picture simplifies or leaves out."""
    made, problem = scene.made, scene.made.problem
    mesh = " × ".join(f"{axis} {size}" for axis, size in made.axis_sizes.items())
    about = f"{problem.heads_q}:{problem.num_heads_kv} heads, {problem.concrete_mask.label}"
    return [
        f"{made.title}: ranks {mesh}, {about}, {made.placement} placement, {problem.direction}",
        *(
            [f"Cells are blocks of {scene.tokens} tokens in the colour of the middle token's rank."]
            * (scene.tokens > 1)
        ),
        *(["The mask is that of the first head."] * (problem.concrete_mask.heads > 1)),
        *([f"{left} further calls are left out."] if left else []),
        *(["The strategy states no schedule, so no transfers are drawn."] * (made.schedule is None)),
    ]


def _draw_grid(axes: Axes, name: str, grid: Colours) -> None:
    """Tokens down and heads across, each in the colour of the rank that has it."""
    axes.imshow(grid, extent=(0, grid.shape[1], len(grid), 0), interpolation="nearest", aspect="auto")
    axes.vlines(range(1, grid.shape[1]), 0, len(grid), color="white", linewidth=min(0.8, 6.4 / grid.shape[1]))
    axes.set(xticks=[], yticks=[], box_aspect=1)
    axes.set_xlabel("heads →", fontsize=_SMALL_FONT, color=_FRAME)
    axes.set_ylabel("← tokens", fontsize=_SMALL_FONT, color=_FRAME)
    axes.set_title(name, fontsize=_FONT)


def _draw_call(axes: Axes, scene: _Scene, call: int, heads: tuple[int, int], steps: Mapping[int, Step]) -> None:
    """The mask of some heads in a call: each rank's part in its colour, and its earlier parts paler."""
    made = scene.made
    painted = np.where(scene.visible[..., None], _GREY, _WHITE)
    for at in range(call + 1):
        for rank in steps:
            step = made.step(rank, at)
            if step is not None and step.heads_q == heads:
                scene.paint(painted, rank, step, 1.0 if at == call else _EARLIER)
    keys = [(rank, step.k_ranges) for rank, step in steps.items()]
    several = sum(stop - start for _, some in keys for start, stop in some) > scene.seqlen
    above = [scene.strip([each]) for each in keys] if several else [scene.strip(keys)]
    _show(axes, painted, scene.strip((rank, step.q_ranges) for rank, step in steps.items()), *above)
    words = f"head {heads[0]}" if heads[1] == heads[0] + 1 else f"heads {heads[0]}–{heads[1] - 1}"
    name = f"step {made.calls[call][0]}" if len(made.layout.steps[0]) > 1 else f"call {call}"
    axes.set_title(f"{name}, {words}", fontsize=_FONT, pad=2)
    axes.set_xlabel("\n".join(scene.moves(call)), fontsize=_SMALL_FONT - 0.5, parse_math=False)


def _show(axes: Axes, painted: Colours, queries: Colours, *keys: Colours) -> None:
    """A mask with the ranks of its queries at the left, and of its keys above."""
    rows, columns, _ = painted.shape
    gap, thick = rows * 0.015, rows * (0.06 if len(keys) < 2 else 0.03)
    style: dict[str, Any] = {"interpolation": "nearest", "aspect": "auto"}
    axes.imshow(painted, extent=(0, columns, rows, 0), **style)
    axes.imshow(queries[:, None], extent=(-gap - thick, -gap, rows, 0), **style)
    for number, line in enumerate(reversed(keys)):
        bottom = -gap - number * thick
        axes.imshow(line[None], extent=(0, columns, bottom, bottom - thick), **style)
    axes.set(xlim=(-gap - thick, columns), ylim=(rows, -gap - len(keys) * thick), xticks=[], yticks=[])
    axes.set_box_aspect(1)
    axes.spines[:].set(color=_FRAME, linewidth=0.5)
