"""What is in the picture of a strategy: who computes, holds and moves what, from its layout and a rehearsal of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from parallel_drawing import Arrow, Bar, Bools, colour_of
from parallel_rehearsal import Rehearsal, rehearse
from parallel_schedule import first_call_after, is_hidden, next_call, schedule

from longca import masks
from longca.manifests.strategy import Layout, Ranges, Step

SEQLEN, HEADS = 256, 8
#: What is drawn of each strategy: a title, the mesh and the placement.
SHOWN: Mapping[str, tuple[str, dict[str, int], str]] = {
    "ulysses": ("Ulysses", {"ulysses": 4}, "contiguous"),
    "ring_p2p": ("Ring P2P", {"ring": 4}, "zigzag"),
    "ring_all_gather": ("Ring All-Gather", {"ring": 4}, "zigzag"),
    "usp": ("USP", {"ring": 2, "ulysses": 2}, "zigzag"),
    "loongtrain": ("LoongTrain", {"outer": 2, "inner": 2, "heads": 2}, "zigzag"),
}
#: The colour of what moves and is of no one rank.
_CARRIES = "#5b636e"
#: A transfer this much smaller than another of its axis is too short to be drawn: log-sum-exps.
_SMALL = 4


@dataclass(frozen=True)
class Panel:
    """One mask in a picture: what some ranks compute at the same time, of the same heads.

    Attributes:
        heads: (start, stop) of the query heads.
        steps: What each of these ranks computes.
        earlier: What each had computed of these heads before.
    """

    heads: tuple[int, int]
    steps: dict[int, Step]
    earlier: dict[int, tuple[Step, ...]]


@dataclass(frozen=True)
class Scene:
    """A rehearsal as a picture has it."""

    rehearsal: Rehearsal

    @property
    def group(self) -> int:
        """Ranks that exchange heads and share a hue; 1 where all of the ranks do, or none."""
        last = list(self.rehearsal.axis_sizes.values())[-1]
        return last if len(self.rehearsal.axis_sizes) > 1 else 1

    @property
    def ranks(self) -> range:
        """All ranks."""
        return range(self.rehearsal.layout.world_size)

    @property
    def calls(self) -> int:
        """Attention calls of each rank."""
        return len(self.rehearsal.parts[0].calls)

    @cached_property
    def visible(self) -> Bools:
        """What the mask shows."""
        return self.rehearsal.problem.concrete_mask.dense()

    def colour(self, rank: int) -> str:
        """A rank's colour."""
        return colour_of(rank, self.group)

    def step(self, rank: int, call: int) -> Step:
        """What a rank computes in one of its calls: a step of the layout, or a part of its heads."""
        steps = self.rehearsal.layout.steps[rank]
        if len(steps) == self.calls:
            return steps[call]
        (whole,) = steps
        heads_q, heads_kv = (
            (start + (stop - start) * call // self.calls, start + (stop - start) * (call + 1) // self.calls)
            for start, stop in (whole.heads_q, whole.heads_kv)
        )
        return Step(whole.q_ranges, whole.k_ranges, heads_q, heads_kv)

    def panels(self, call: int) -> list[Panel]:
        """The masks of one call, by heads."""
        found: dict[tuple[int, int], dict[int, Step]] = {}
        for rank in self.ranks:
            step = self.step(rank, call)
            found.setdefault(step.heads_q, {})[rank] = step
        return [
            Panel(heads, steps, {rank: tuple(self._earlier(rank, call, heads)) for rank in steps})
            for heads, steps in sorted(found.items())
        ]

    def _earlier(self, rank: int, call: int, heads: tuple[int, int]) -> list[Step]:
        steps = [self.step(rank, before) for before in range(call)]
        return [step for step in steps if step.heads_q == heads]

    def pairs(self, step: Step) -> Bools:
        """What a step shows of the mask."""
        return self.visible & np.outer(held(step.q_ranges), held(step.k_ranges))

    def owners(self) -> list[str]:
        """The colour of the rank that holds each token."""
        return self._line(dict(enumerate(self.rehearsal.layout.shards)))

    def _line(self, ranges: Mapping[int, Ranges]) -> list[Any]:
        """The colour of the rank that has each token; None for tokens that none has."""
        line: list[Any] = [None] * SEQLEN
        for rank, each in ranges.items():
            for token in np.flatnonzero(held(each)):
                line[token] = self.colour(rank)
        return line

    def key_lines(self, panel: Panel) -> list[list[Any]]:
        """Who has which keys: one line where every key is at one rank, else a line a rank."""
        keys = {rank: step.k_ranges for rank, step in panel.steps.items()}
        if sum(held(each).sum() for each in keys.values()) <= SEQLEN:
            return [self._line(keys)]
        return [self._line({rank: each}) for rank, each in keys.items()]

    def query_line(self, panel: Panel) -> list[Any]:
        """Who computes which queries."""
        return self._line({rank: step.q_ranges for rank, step in panel.steps.items()})

    def by_tokens(self) -> list[list[str]]:
        """Who holds each token of each head: whoever holds the token."""
        return [[colour] * HEADS for colour in self.owners()]

    def by_heads(self) -> list[list[str]]:
        """Who has each token of each head after the exchange of heads."""
        grid = [[""] * HEADS for _ in range(SEQLEN)]
        for rank in self.ranks:
            whole = self.rehearsal.layout.steps[rank][0]
            for token in np.flatnonzero(held(whole.q_ranges)):
                for head in range(*whole.heads_q):
                    grid[token][head] = self.colour(rank)
        return grid

    def exchanges_heads(self) -> bool:
        """Whether ranks exchange heads before they compute."""
        return any(move.kind == "all_to_all" for move in self.rehearsal.parts[0].moves)

    def chips(self, call: int) -> dict[int, str]:
        """Of each rank the colour of who had the keys that it has at a call, where keys go round."""
        home = {(self.step(r, 0).k_ranges, self.step(r, 0).heads_kv): self.colour(r) for r in self.ranks}
        if len(self.rehearsal.layout.steps[0]) == 1:
            return {}
        steps = {rank: self.step(rank, call) for rank in self.ranks}
        return {rank: home[step.k_ranges, step.heads_kv] for rank, step in steps.items()}

    def arrows(self, call: int, *, hidden: bool) -> list[Arrow]:
        """What begins to move after so many calls: behind the next one, or with nothing behind it."""
        found: dict[Arrow, None] = {}
        for rank, part in enumerate(self.rehearsal.parts):
            for index, move in enumerate(part.moves):
                if first_call_after(part, index) == call and is_hidden(part, index) is hidden:
                    label = self._label(rank, index)
                    if hidden and next_call(part, index) is not None:
                        label = f"next {label}"
                    if move.kind == "p2p":
                        found[Arrow((rank, *move.to), f"{label} along {move.axis}")] = None
                    else:
                        ranks = tuple(sorted((rank, *move.to)))
                        found[Arrow(ranks, f"{label}: {move.kind.replace('_', '-')}", is_collective=True)] = None
        return list(found)

    def _label(self, rank: int, index: int) -> str:
        part = self.rehearsal.parts[rank]
        if next_call(part, index) is None:
            return "out"
        return "q, k, v" if part.moves[index].kind == "all_to_all" else "k, v"

    def lanes(self) -> list[str]:
        """The lines of a timeline: computing, and each axis along which something moves."""
        return ["computes", *dict.fromkeys(f"{move.axis}" for move in self.rehearsal.parts[0].moves)]

    def bars(self) -> list[Bar]:
        """The timeline of rank 0."""
        part = self.rehearsal.parts[0]
        areas = [self.pairs(self.step(0, call)).sum() * _width(self.step(0, call)) for call in range(self.calls)]
        times = schedule(part, [float(area) / float(max(areas)) for area in areas])
        chips = {call: self.chips(call) for call in range(self.calls)}
        bars = []
        for call, span in enumerate(times.calls):
            label = (
                f"step {call}" if len(self.rehearsal.layout.steps[0]) > 1 else heads_words(self.step(0, call).heads_q)
            )
            bars.append(Bar("computes", span.start, span.stop, label, self.colour(0)))
        for index, (move, span) in enumerate(zip(part.moves, times.moves, strict=True)):
            then = next_call(part, index)
            colour = chips[then][0] if move.kind == "p2p" and then is not None else _CARRIES
            label = self._label(0, index)
            if move.sent * _SMALL > max(each.sent for each in part.moves if each.axis == move.axis):
                bars.append(Bar(move.axis, span.start, span.stop, label, colour))
        return bars


def held(ranges: Ranges) -> Bools:
    """Which tokens ranges hold: [tokens]."""
    line = np.zeros(SEQLEN, np.bool_)
    for start, stop in ranges:
        line[start:stop] = True
    return line


def _width(step: Step) -> int:
    return step.heads_q[1] - step.heads_q[0]


def heads_words(heads: tuple[int, int]) -> str:
    """Heads, in words."""
    first, last = heads[0], heads[1] - 1
    return f"head {first}" if first == last else f"heads {first}–{last}"


def scene_of(strategy: str) -> Scene:
    """What is drawn of a strategy."""
    _, axis_sizes, placement = SHOWN[strategy]
    return Scene(rehearse(strategy, masks.build("causal", SEQLEN), axis_sizes, placement, (HEADS, HEADS)))


def layout_text(layout: Layout | None) -> str:
    """All fields of a layout, in one text."""
    if layout is None:
        return "None"
    names = f"strategy={layout.strategy!r}, axis_sizes={layout.axis_sizes!r}"
    return f"Layout(steps={tuple(layout.steps)!r}, shards={layout.shards!r}, {names})"


def digest(scene: Scene) -> str:
    """A hash of all that a picture is made of: the layout, and what each rank does in which order."""
    parts = [(part.events, [astuple(move) for move in part.moves], part.calls) for part in scene.rehearsal.parts]
    text = f"({dict(scene.rehearsal.axis_sizes)!r}, {layout_text(scene.rehearsal.layout)}, {parts!r})"
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
