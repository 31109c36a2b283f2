"""Scenes: an arrangement as its picture has it, with cells of tokens, colours of ranks, arrows and bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from longca.manifests.steps import Ranges, Step
from longca_bench.reports.layout_arrangement import Arrangement, Transfer
from longca_bench.reports.layout_drawing import Bar, rank_colour
from longca_bench.reports.layout_ranks import Arrow
from longca_bench.reports.mask_raster import rasterize

__all__ = ["CELLS", "Cells", "Panel", "Scene", "heads_words"]

Bools = NDArray[np.bool_]
#: The most cells a side of a mask.
CELLS = 512
#: The colour of tensors that belong to no one rank.
_SHARED = "#5b636e"
#: A transfer this many times smaller than the largest of its axis is not drawn, as that of log-sum-exps.
_SMALL = 4
#: The longest and the shortest transfer in a timeline, over the longest attention call.
_LONGEST, _SHORTEST = 0.6, 0.12


class Cells:
    """The tokens of a sequence in cells. A cell has the colour of its middle token's rank.

    Attributes:
        tokens: Tokens a cell.
        count: Number of cells.
    """

    def __init__(self, seqlen: int) -> None:
        self.tokens = -(-seqlen // CELLS)
        self.count = -(-seqlen // self.tokens)
        self._middles = np.minimum(np.arange(self.count) * self.tokens + self.tokens // 2, seqlen - 1)

    def of(self, ranges: Ranges) -> Bools:
        """The cells that lie in ranges of tokens: [cells]."""
        held = np.zeros(self.count, np.bool_)
        for start, stop in ranges:
            held |= (self._middles >= start) & (self._middles < stop)
        return held

    def line(self, owned: Mapping[str, Sequence[Ranges]]) -> list[str | None]:
        """The colour of each cell, from the ranges of each colour. None stands for cells without one."""
        line: list[str | None] = [None] * self.count
        for colour, parts in owned.items():
            for ranges in parts:
                for cell in np.flatnonzero(self.of(ranges)):
                    line[cell] = colour
        return line


@dataclass(frozen=True)
class Panel:
    """One mask of a picture: the parts that some ranks compute in one call, of the same heads.

    Attributes:
        heads: (start, stop) of the query heads.
        steps: The part of each of these ranks.
        earlier: The parts of each rank in earlier calls of these heads.
    """

    heads: tuple[int, int]
    steps: dict[int, Step]
    earlier: dict[int, list[Step]]


@dataclass(frozen=True, eq=False)
class Scene:
    """An arrangement as its picture has it."""

    arrangement: Arrangement

    @property
    def ranks(self) -> range:
        """All ranks."""
        return range(self.arrangement.world_size)

    @cached_property
    def cells(self) -> Cells:
        """The tokens in cells."""
        return Cells(self.arrangement.layout.num_tokens)

    @cached_property
    def visible(self) -> Bools:
        """The cells with a visible pair, in the first head: [queries, keys]."""
        return rasterize(self.arrangement.problem.concrete_mask, CELLS).shown > 0

    def colour(self, rank: int) -> str:
        """A rank's colour. The ranks of an innermost group share a hue."""
        sizes = list(self.arrangement.axis_sizes.values())
        return rank_colour(rank, self.arrangement.world_size, sizes[-1] if len(sizes) > 1 else 1)

    @property
    def is_step(self) -> bool:
        """Whether calls are steps over different keys, and not chunks of heads."""
        return len(self.arrangement.layout.steps[0]) > 1

    def panels(self, call: int) -> list[Panel]:
        """The masks of one call, by heads."""
        found: dict[tuple[int, int], dict[int, Step]] = {}
        for rank in self.ranks:
            if (step := self.arrangement.step(rank, call)) is not None:
                found.setdefault(step.heads_q, {})[rank] = step
        return [
            Panel(heads, steps, {rank: self._earlier(rank, call, heads) for rank in steps})
            for heads, steps in sorted(found.items())
        ]

    def _earlier(self, rank: int, call: int, heads: tuple[int, int]) -> list[Step]:
        steps = (self.arrangement.step(rank, before) for before in range(call))
        return [step for step in steps if step is not None and step.heads_q == heads]

    def pairs(self, step: Step) -> Bools:
        """The visible cells of a step."""
        return self.visible & np.outer(self.cells.of(step.q_ranges), self.cells.of(step.k_ranges))

    @cached_property
    def owners(self) -> list[str | None]:
        """The colour of the rank that holds each cell."""
        return self.line(dict(enumerate(self.arrangement.layout.shards)))

    def line(self, ranges: Mapping[int, Ranges]) -> list[str | None]:
        """The colour of the rank that has each cell."""
        return self.cells.line({self.colour(rank): [each] for rank, each in ranges.items()})

    def key_lines(self, panel: Panel) -> list[list[str | None]]:
        """The keys of each rank: one line if no key is at two ranks, else a line for each rank."""
        keys = {rank: step.k_ranges for rank, step in panel.steps.items()}
        total = sum(stop - start for ranges in keys.values() for start, stop in ranges)
        if total <= self.arrangement.layout.num_tokens:
            return [self.line(keys)]
        return [self.line({rank: each}) for rank, each in keys.items()]

    def by_heads(self) -> list[list[str]]:
        """The colour of the rank that computes each cell of each head: [cells][heads]."""
        heads = self.arrangement.problem.heads_q
        grid = np.full((self.cells.count, heads), "#ffffff", object)
        for rank in self.ranks:
            for step in self.arrangement.layout.steps[rank][:1]:
                grid[self.cells.of(step.q_ranges), slice(*step.heads_q)] = self.colour(rank)
        return grid.tolist()

    def chips(self, call: int) -> dict[int, str]:
        """For each rank the colour of the rank whose keys it has at a call, if keys go round."""
        if not self.is_step:
            return {}
        home = {self._keys(rank, 0): self.colour(rank) for rank in self.ranks}
        found = {rank: home.get(self._keys(rank, call)) for rank in self.ranks}
        return {rank: colour for rank, colour in found.items() if colour is not None}

    def _keys(self, rank: int, call: int) -> object:
        step = self.arrangement.step(rank, call)
        return None if step is None else (step.k_ranges, step.heads_kv)

    @cached_property
    def transfers(self) -> list[Transfer]:
        """The transfers that are large enough to be drawn."""
        found = self.arrangement.transfers
        most = {axis: max(t.move.sent for t in found if t.move.axis == axis) for axis in {t.move.axis for t in found}}
        return [transfer for transfer in found if transfer.move.sent * _SMALL > most[transfer.move.axis]]

    def arrows(self, call: int, *, beside: bool) -> list[Arrow]:
        """The transfers beside a call, or those before it."""
        chosen = [transfer for transfer in self.transfers if (transfer.call, transfer.beside) == (call, beside)]
        return list(dict.fromkeys(arrow for transfer in chosen for arrow in self._arrows(transfer)))

    def _arrows(self, transfer: Transfer) -> list[Arrow]:
        move = transfer.move
        groups = self.arrangement.groups(move.axis)
        kind = move.kind.replace("_", "-")
        when = "" if transfer.beside or transfer.call in (0, len(self.arrangement.calls)) else ", before the call"
        words = move.carries or "tensors"
        if move.kind == "p2p":
            pairs = ((one, other) for group in groups for one, other in zip(group, [*group[1:], group[0]], strict=True))
            return [Arrow(pair, f"{words} along {move.axis}{when}") for pair in pairs]
        return [Arrow(tuple(group), f"{words}: {kind}{when}", is_collective=True) for group in groups]

    @property
    def lanes(self) -> list[str]:
        """The lines of a timeline: computing, and each axis along which something moves."""
        return ["computes", *dict.fromkeys(transfer.move.axis for transfer in self.transfers)]

    def bars(self) -> list[Bar]:
        """The timeline of rank 0: lengths of calls by visible pairs, and lengths of transfers by bytes."""
        areas = [self._area(call) for call in range(len(self.arrangement.calls))]
        longest = max(areas, default=0.0) or 1.0
        bars: list[Bar] = []
        ends: dict[int, float] = {}  # the end of the transfers that a phase waits for, by phase
        now, call = 0.0, 0
        for number, phase in enumerate(self.arrangement.phases):
            start = now
            free: dict[str, float] = {}
            for transfer in (each for each in self.transfers if each.phase == number):
                bars.append(self._transfer(transfer, free.get(transfer.move.axis, start), longest))
                free[transfer.move.axis] = bars[-1].stop
                last = number + transfer.move.spread - 1
                ends[last] = max(ends.get(last, 0.0), bars[-1].stop)
            if phase.step is not None:
                begin = start if self._is_beside(phase.beside) else max([start, *free.values()])
                bars.append(Bar("computes", begin, begin + areas[call], self.call_words(call), self.colour(0)))
                now, call = bars[-1].stop, call + 1
            now = max(now, ends.get(number, 0.0))
        return bars

    @staticmethod
    def _is_beside(beside: bool | tuple[bool, ...]) -> bool:
        return beside[0] if isinstance(beside, tuple) else beside

    def _area(self, call: int) -> float:
        step = self.arrangement.step(0, call)
        return 0.0 if step is None else float(self.pairs(step).sum()) * (step.heads_q[1] - step.heads_q[0])

    def _transfer(self, transfer: Transfer, start: float, longest: float) -> Bar:
        move = transfer.move
        share = move.sent / max(each.move.sent for each in self.transfers)
        length = longest * max(_SHORTEST, _LONGEST * share)
        has_call = self.arrangement.phases[transfer.phase].step is not None
        following = transfer.call + has_call * move.spread
        is_ring = move.carries.startswith("k, v") and move.kind == "p2p" and following < len(self.arrangement.calls)
        colour = self.chips(following).get(0, _SHARED) if is_ring else _SHARED
        return Bar(move.axis, start, start + length, move.carries or move.kind.replace("_", "-"), colour)

    def call_words(self, call: int) -> str:
        """The name of a call on rank 0: its step, or its heads."""
        step = self.arrangement.step(0, call)
        return (
            f"step {self.arrangement.calls[call].step}" if self.is_step or step is None else heads_words(step.heads_q)
        )


def heads_words(heads: tuple[int, int]) -> str:
    """Heads, in words."""
    first, last = heads[0], heads[1] - 1
    return f"head {first}" if first == last else f"heads {first}–{last}"
