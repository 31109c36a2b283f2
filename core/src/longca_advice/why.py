"""Why a choice is faster than another one: one sentence from the parts that the cost model adds up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from longca.manifests.problem import product_dims
from longca.plain_text import time_text
from longca_advice.work import TILE

if TYPE_CHECKING:
    from longca_advice.candidates import Candidate

__all__ = ["why_first"]

#: The share of a difference that a cause must have to be named.
_MOST = 0.5

#: Numbers of tiles that differ by this factor are named. Else the rates are named at which tiles are computed.
_MORE_TILES = 1.05

#: A cause that takes less than this share of its time in the other candidate is named for the other one alone.
_LITTLE = 0.05

#: The work that takes the seconds of a cause. Tiles have sentences of their own.
_SPENT: Mapping[str, str] = {
    "masking": "masking partly visible tiles, {work.partial:,.0f} in each head, takes",
    "rows": "starting rows of tiles, {work.rows:,.0f} in each head and {work.row_length:.3g} tiles long, takes",
    "documents": "launching tiles that shorter documents leave empty takes",
    "layers": "merging layers takes",
    "longest": "waiting for the longest row or column of tiles takes",
    "launch": "launching the call takes",
    "cells": "passing over hidden tiles takes",
    "kernels": "the kernels of the slowest rank take",
    "transfers": "transfers and waits that no kernel hides take",
    "overhead": "packing, merging and launching take",
}


def why_first(candidates: Sequence[Candidate]) -> str:
    """Why the first candidate that fits leads the first one outside its interval. Empty if there is no other one."""
    fitting = [one for one in candidates if one.fits]
    other = next((one for one in fitting[1:] if one.seconds > fitting[0].interval[1]), None)
    if other is None:
        return ""
    best = fitting[0]
    gains = [theirs - ours for ours, theirs in zip(best.each, other.each, strict=True)]
    place = gains.index(max(gains))
    part = f"mostly the {best.request.directions[place]}, " if len(gains) > 1 else ""
    cause = _cause(best, other, place, gains[place])
    times = f"{time_text(best.each[place])} against {time_text(other.each[place])}"
    return f"Why {best.title} before {other.title}: {part}{times}{cause and f'; {cause}'}."


def _cause(best: Candidate, other: Candidate, place: int, gain: float) -> str:
    """The cause of most of the seconds that a candidate gains in a direction, in words. Empty if no cause has most."""
    ours, theirs = best.causes(place), other.causes(place)
    gains = {cause: theirs[cause] - ours[cause] for cause in ours if cause in theirs}
    cause = max(gains, key=lambda name: gains[name], default="")
    if not cause or gains[cause] < _MOST * gain:
        return ""
    if cause == "tiles":
        return _tiles(best, other, place)
    spent = _SPENT[cause].format(work=other.estimates[place].work if other.estimates else None)
    if ours[cause] < _LITTLE * theirs[cause]:
        return f"{spent} {other.kernel if other.kernel != best.kernel else 'the latter'} {time_text(theirs[cause])}"
    return f"{spent} {time_text(ours[cause])} and not {time_text(theirs[cause])}"


def _tiles(best: Candidate, other: Candidate, place: int) -> str:
    """The numbers of tiles, or the rates at which they are computed if the numbers are alike."""
    problem = best.request.problem
    seconds = [one.causes(place)["tiles"] for one in (best, other)]
    works = [one.estimates[place].work for one in (best, other)]
    ours, theirs = (0.0 if work is None else work.full if work.has_blocks else work.tiles for work in works)
    if theirs > _MORE_TILES * ours:
        visible = problem.concrete_mask.area / problem.concrete_mask.heads / TILE**2
        return (
            f"for each head it computes {ours:,.0f} tiles of {TILE} × {TILE} and not {theirs:,.0f}, and the visible "
            f"pairs fill {visible:,.0f}"
        )
    direction = best.request.directions[place]
    flops = 2e-12 * TILE**2 * product_dims(direction, *problem.dims) * problem.heads_q
    rates = [flops * count / max(taken, 1e-9) for count, taken in zip((ours, theirs), seconds, strict=True)]
    return f"its tiles of {TILE} × {TILE} are computed at {rates[0]:.3g} TFLOP/s and not {rates[1]:.3g}"
