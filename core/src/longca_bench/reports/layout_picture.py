"""Pictures of strategies: the tokens and pairs of each rank in each call, a timeline, and placements side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from longca.errors import RequestError
from longca.manifests.steps import Ranges, Step
from longca_bench.reports.layout_arrangement import Arrangement, Transfer
from longca_bench.reports.mask_raster import rasterize

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

__all__ = ["Bar", "Scene", "draw_layout", "draw_placements"]

#: The most cells a side of a mask, and the most ranks and calls of a picture.
CELLS, MOST_RANKS, MOST_CALLS = 512, 16, 8
#: The dark and the light end of each hue.
_HUES = (
    ("#2f6db3", "#8fbbe8"), ("#d9652b", "#f5b48d"), ("#2e8b63", "#8dd0b0"), ("#8e4aa8", "#cda3dd"),
    ("#b03a5b", "#e5a3b5"), ("#6b7f1e", "#c3d17f"), ("#1f8a99", "#8fd3dc"), ("#7a5a3c", "#cdb49c"),
)  # fmt: skip
_WHITE, _GREY, _FRAME, _MUTED = np.ones(3), np.array(to_rgb("#e4e7ec")), "#7a828c", "#5b636e"
#: The strength of the colour of earlier calls, the longest and the shortest transfer of a timeline over the longest
#: call, and how many times smaller than the largest of its axis a transfer is that is not drawn.
_EARLIER, _LONGEST, _SHORTEST, _SMALL = 0.35, 0.6, 0.12, 4
_FONT, _SMALL_FONT = 8.0, 6.5

Colours = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Bar:
    """A stretch of time on rank 0.

    Attributes:
        lane: The line in which it is drawn: `computes`, or an axis along which something moves.
        label: Its name.
        start: Its beginning.
        stop: Its end.
    """

    lane: str
    label: str
    start: float
    stop: float


@dataclass(frozen=True, eq=False)
class Scene:
    """An arrangement as its picture has it: cells of tokens, colours of ranks, and a timeline.

    Attributes:
        made: The arrangement.
    """

    made: Arrangement

    @cached_property
    def tokens(self) -> int:
        """Tokens a cell."""
        return -(-self.made.layout.num_tokens // CELLS)

    def cells(self, ranges: Ranges) -> Bools:
        """The cells whose middle token lies in ranges of tokens: [cells]."""
        count = -(-self.made.layout.num_tokens // self.tokens)
        middles = np.minimum(np.arange(count) * self.tokens + self.tokens // 2, self.made.layout.num_tokens - 1)
        held = np.zeros(count, np.bool_)
        for start, stop in ranges:
            held |= (middles >= start) & (middles < stop)
        return held

    @cached_property
    def visible(self) -> Bools:
        """The cells with a visible pair, in the first head: [queries, keys]."""
        return rasterize(self.made.problem.concrete_mask, CELLS).shown > 0

    def colour(self, rank: int) -> Colours:
        """A rank's colour: a hue for each innermost group of ranks, and a shade for each member."""
        sizes, ranks = list(self.made.axis_sizes.values()), self.made.world_size
        group = sizes[-1] if len(sizes) > 1 else 1
        place, number = divmod(rank, group)
        shades = -(-ranks // group // len(_HUES)) * group
        share = (place // len(_HUES) * group + number) / (shades - 1) if shades > 1 else 0.0
        dark, light = (np.array(to_rgb(end)) for end in _HUES[place % len(_HUES)])
        return np.asarray(dark + (light - dark) * share)

    def strip(self, ranges: Mapping[int, Ranges]) -> Colours:
        """Cells in the colour of the rank that has them: [cells, 3]."""
        line = np.ones((len(self.visible), 3))
        for rank, some in ranges.items():
            line[self.cells(some)] = self.colour(rank)
        return line

    @property
    def shards(self) -> dict[int, Ranges]:
        """The tokens of each rank."""
        return dict(enumerate(self.made.layout.shards))

    def picture(self, steps: Iterable[tuple[int, Step, float]]) -> Colours:
        """The mask with the cells of steps in the colours of their ranks, each with a strength: [queries, keys, 3]."""
        painted = np.where(self.visible[..., None], _GREY, _WHITE)
        for rank, step, strength in steps:
            colour = strength * self.colour(rank) + (1 - strength) * _WHITE
            painted[self.pairs(step)] = colour
        return painted

    def pairs(self, step: Step) -> Bools:
        """The visible cells of a step."""
        return self.visible & np.outer(self.cells(step.q_ranges), self.cells(step.k_ranges))

    def panels(self, call: int) -> dict[tuple[int, int], dict[int, Step]]:
        """The steps of a call by their query heads and ranks."""
        found: dict[tuple[int, int], dict[int, Step]] = {}
        for rank in range(self.made.world_size):
            if (step := self.made.step(rank, call)) is not None:
                found.setdefault(step.heads_q, {})[rank] = step
        return dict(sorted(found.items()))

    def by_heads(self) -> Colours:
        """The colour of the rank that computes each cell of each head first: [cells, heads, 3]."""
        grid = np.ones((len(self.visible), self.made.problem.heads_q, 3))
        for rank, steps in enumerate(self.made.layout.steps):
            for step in steps[:1]:
                grid[self.cells(step.q_ranges), slice(*step.heads_q)] = self.colour(rank)
        return grid

    @cached_property
    def transfers(self) -> list[Transfer]:
        """The transfers that are large enough to be drawn."""
        most: dict[str, int] = {}
        for each in self.made.transfers:
            most[each.move.axis] = max(most.get(each.move.axis, 0), each.move.sent)
        return [each for each in self.made.transfers if each.move.sent * _SMALL > most[each.move.axis]]

    def moves(self, call: int) -> list[str]:
        """The transfers before a call and beside it, in words."""
        found = []
        for each in self.transfers:
            if each.call == call:
                move = each.move
                when = "beside" if each.beside else "after" if call == len(self.made.calls) else "before"
                found.append(
                    f"{when} it: {move.carries or 'tensors'} by {move.kind.replace('_', '-')} along {move.axis}"
                )
        return list(dict.fromkeys(found))

    def bars(self) -> list[Bar]:
        """The timeline of rank 0: lengths of calls by visible pairs, and lengths of transfers by bytes."""
        areas = [self._area(call) for call in range(len(self.made.calls))]
        longest, sent = max(areas, default=0.0) or 1.0, max((each.move.sent for each in self.transfers), default=1)
        bars: list[Bar] = []
        ends: dict[int, float] = {}  # the end of the transfers that a phase waits for, by phase
        now, call = 0.0, 0
        for number, phase in enumerate(self.made.phases):
            start, free = now, dict[str, float]()
            for move in (each.move for each in self.transfers if each.phase == number):
                begin = free.get(move.axis, start)
                stop = begin + longest * max(_SHORTEST, _LONGEST * move.sent / sent)
                bars.append(Bar(move.axis, move.carries or move.kind.replace("_", "-"), begin, stop))
                free[move.axis] = stop
                ends[number + move.spread - 1] = max(ends.get(number + move.spread - 1, 0.0), stop)
            if phase.step is not None:
                beside = phase.beside[0] if isinstance(phase.beside, tuple) else phase.beside
                begin = start if beside else max([start, *free.values()])
                bars.append(Bar("computes", self.words(call), begin, begin + areas[call]))
                now, call = begin + areas[call], call + 1
            now = max(now, ends.get(number, 0.0))
        return bars

    def _area(self, call: int) -> float:
        step = self.made.step(0, call)
        return 0.0 if step is None else float(self.pairs(step).sum()) * (step.heads_q[1] - step.heads_q[0])

    def words(self, call: int) -> str:
        """The name of a call: its step, or its number for chunks of heads."""
        return f"step {self.made.calls[call].step}" if len(self.made.layout.steps[0]) > 1 else f"call {call}"


def draw_layout(made: Arrangement) -> Figure:
    """The picture of an arrangement: the tokens and pairs of each rank, call by call, and a timeline.

    Raises:
        RequestError: It has more ranks than a picture has room for.
    """
    _check_ranks(made.world_size)
    scene = Scene(made)
    count = len(made.calls)
    calls = list(range(count)) if count <= MOST_CALLS else [*range(MOST_CALLS - 1), count - 1]
    held = scene.strip(scene.shards)[:, None].repeat(made.problem.heads_q, 1)
    grids = {"q, k, v held": held, "exchanged": scene.by_heads()} if made.splits_heads else {}
    panels = len(scene.panels(0))
    across = 1 if panels < 3 else 2 if panels <= 8 else 4
    down = -(-panels // across)
    widths = [*([0.9] * len(grids)), *([1.75 * across] * len(calls))]
    lanes = list(dict.fromkeys(("computes", *(bar.lane for bar in scene.bars()))))
    heights = [1.75 * down + 0.75, 0.3 * len(lanes) + 0.75]
    figure = Figure(figsize=(max(sum(widths), 5.5), sum(heights) + 0.8), dpi=200, layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=heights)
    top, bottom = parts
    columns = np.ravel(top.subfigures(1, len(widths), width_ratios=widths))
    for column, (name, grid) in zip(columns, grids.items(), strict=False):
        _draw_grid(column, name, grid)
    moves = [scene.moves(call) + (scene.moves(count) if call + 1 == count else []) for call in calls]
    most = max(map(len, moves), default=0)
    for column, call, words in zip(columns[len(grids) :], calls, moves, strict=True):
        _draw_call(column, scene, call, (down, across))
        below = "\n".join([*words, *[" "] * (most - len(words))])  # as many lines below each call
        column.supxlabel(below, fontsize=_SMALL_FONT - 0.5, parse_math=False)
    _draw_timeline(bottom, scene, lanes)
    wide = round(figure.get_figwidth() * 15)
    title = [part for line in _title(scene) for part in textwrap.wrap(line, wide)]
    figure.suptitle("\n".join(title), fontsize=_FONT, x=0.01, ha="left", parse_math=False)
    return figure


def draw_placements(found: Mapping[str, Arrangement | str]) -> Figure:
    """A picture for each placement: the queries of each rank, and the share of the mask of each rank.

    Args:
        found: The arrangement by each placement. A text stands for a placement without a layout.

    Raises:
        RequestError: There are more ranks than a picture has room for.
    """
    _check_ranks(max((made.world_size for made in found.values() if isinstance(made, Arrangement)), default=0))
    figure = Figure(figsize=(1.8 * len(found) + 0.3, 2.9), dpi=200, layout="constrained")
    masks, shares = figure.subplots(2, len(found), squeeze=False, gridspec_kw={"height_ratios": [3, 1]})
    for (name, made), mask, share in zip(found.items(), masks, shares, strict=True):
        mask.set_title(name, fontsize=_FONT, parse_math=False)
        if isinstance(made, str):
            for axes in (mask, share):
                axes.set_axis_off()
            mask.text(0.5, 0.5, "not for this mask", ha="center", color=_FRAME, fontsize=_FONT)
            continue
        scene = Scene(made)
        painted = np.where(scene.visible[..., None], scene.strip(scene.shards)[:, None], _WHITE)
        _show(mask, painted, scene.strip(scene.shards))
        mean = sum(made.pairs) / len(made.pairs) or 1.0
        ranks = range(made.world_size)
        share.bar(ranks, [pairs / mean for pairs in made.pairs], color=[tuple(scene.colour(rank)) for rank in ranks])
        share.axhline(1, color="black", linewidth=0.7, linestyle=(0, (3, 2)))
        share.set(ylim=(0, max(2.0, made.imbalance)), xticks=[], yticks=[])
        share.set_xlabel(f"busiest rank: {made.imbalance:.2f} of the mean", fontsize=_SMALL_FONT)
        share.spines[["top", "right", "left"]].set_visible(False)
    return figure


def _check_ranks(ranks: int) -> None:
    """Refuses more ranks than a picture has room for."""
    if ranks > MOST_RANKS:
        raise RequestError(
            f"a picture has room for {MOST_RANKS} ranks, and this mesh has {ranks}. Leave out --out for the numbers of "
            "all ranks, or draw fewer ranks"
        )


def _title(scene: Scene) -> list[str]:
    """The title, and the parts that a picture simplifies or leaves out."""
    made, problem = scene.made, scene.made.problem
    mesh = " × ".join(f"{axis} {size}" for axis, size in made.axis_sizes.items())
    ranks = f"{made.world_size} ranks" + (f" ({mesh})" if len(made.axis_sizes) > 1 else "")
    about = f"{problem.heads_q}:{problem.num_heads_kv} heads, {problem.concrete_mask.label}"
    lines = [f"{made.title}: {ranks}, {about}, {made.placement} placement, {problem.direction}"]
    if scene.tokens > 1:
        lines.append(f"Cells are blocks of {scene.tokens} tokens in the colour of the middle token's rank.")
    if problem.concrete_mask.heads > 1:
        lines.append("The mask is that of the first head.")
    if len(made.calls) > MOST_CALLS:
        lines.append(f"{MOST_CALLS} of {len(made.calls)} calls are drawn.")
    if made.schedule is None:
        lines.append("The strategy states no schedule, so no transfers are drawn.")
    return lines


def _draw_grid(column: SubFigure, name: str, grid: Colours) -> None:
    """Tokens down and heads across, each in the colour of the rank that has it."""
    axes = column.subplots()
    axes.imshow(grid, extent=(0, grid.shape[1], len(grid), 0), interpolation="nearest", aspect="auto")
    axes.vlines(range(1, grid.shape[1]), 0, len(grid), color="white", linewidth=min(0.8, 6.4 / grid.shape[1]))
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel("heads →", fontsize=_SMALL_FONT, color=_FRAME)
    axes.set_ylabel("← tokens", fontsize=_SMALL_FONT, color=_FRAME)
    column.suptitle(name, fontsize=_FONT, fontweight="bold")


def _draw_call(column: SubFigure, scene: Scene, call: int, shape: tuple[int, int]) -> None:
    """The masks of one call: each rank's part in its colour, and its earlier parts paler."""
    panels = column.subplots(*shape, squeeze=False)
    for axes in panels.flat:
        axes.set_axis_off()
    for axes, (heads, steps) in zip(panels.flat, scene.panels(call).items(), strict=False):
        earlier = [
            (rank, step, _EARLIER)
            for rank in steps
            for before in range(call)
            if (step := scene.made.step(rank, before)) is not None and step.heads_q == heads
        ]
        painted = scene.picture([*earlier, *((rank, step, 1.0) for rank, step in steps.items())])
        axes.set_axis_on()
        keys = {rank: step.k_ranges for rank, step in steps.items()}
        several = sum(stop - start for some in keys.values() for start, stop in some) > scene.made.layout.num_tokens
        above = [scene.strip({rank: some}) for rank, some in keys.items()] if several else [scene.strip(keys)]
        _show(axes, painted, scene.strip({rank: step.q_ranges for rank, step in steps.items()}), above)
        words = f"head {heads[0]}" if heads[1] == heads[0] + 1 else f"heads {heads[0]}–{heads[1] - 1}"
        axes.set_title(words, fontsize=_SMALL_FONT, color=_FRAME, pad=2)
    column.suptitle(scene.words(call), fontsize=_FONT, fontweight="bold")


def _show(axes: Axes, painted: Colours, queries: Colours, keys: Sequence[Colours] = ()) -> None:
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


def _draw_timeline(bottom: SubFigure, scene: Scene, lanes: Sequence[str]) -> None:
    """Bars in lanes, and the colours of ranks. A bar without room for its label has none."""
    axes = bottom.subplots()
    bars = scene.bars()
    end = max((bar.stop for bar in bars), default=0.0) or 1.0
    for bar in bars:
        colour = scene.colour(0) if bar.lane == "computes" else to_rgb(_MUTED)
        lane, length = lanes.index(bar.lane), bar.stop - bar.start
        axes.barh(lane, length, 0.75, bar.start, color=tuple(colour), edgecolor="white", linewidth=0.8)
        if len(bar.label) <= 90 * length / end:
            middle = (bar.start + bar.stop) / 2
            axes.text(
                middle, lane, bar.label, color="white", fontsize=_SMALL_FONT, ha="center", va="center", parse_math=False
            )
    axes.set(ylim=(len(lanes) - 0.4, -0.6), xlim=(0, end * 1.01), xticks=[])
    axes.set_yticks(range(len(lanes)), lanes, fontsize=_FONT - 1)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("time on rank 0, not to scale →", fontsize=_SMALL_FONT, color=_FRAME, loc="right")
    ranks = range(scene.made.world_size)
    handles = [Patch(color=tuple(scene.colour(rank)), label=f"rank {rank}") for rank in ranks]
    bottom.legend(
        handles=handles, loc="outside lower center", ncols=min(8, len(handles)), fontsize=_SMALL_FONT, frameon=False
    )
