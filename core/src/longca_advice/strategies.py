"""Ranking strategies: every strategy, mesh and placement on some ranks, each with its quickest kernels.

All ways are weighed by the tiles of the whole mask first, which takes no cut. The most promising ones are then weighed
exactly, from the cut of each step, and their kernels are checked, until as many are known as an answer shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from longca.errors import UnsupportedError
from longca_advice.asked import Asked
from longca_advice.calls import StrategyCall
from longca_advice.choices import Choice, Refused, Unmeasured
from longca_advice.kernels import Ranking
from longca_advice.meshes import left_out
from longca_advice.timeline import Timeline
from longca_advice.ways import Links, Role, Way, ways_of
from longca_advice.weighed import Weighed, across, choice_of, name_of

__all__ = ["rank_strategies"]

_Floats = NDArray[np.float64]

#: Ways that are weighed exactly: the least number, if so many exist, and the greatest.
_EXACT, _AT_MOST = 8, 12

#: From this number of ranks on, half as many ways are weighed exactly.
_MANY = 128

#: The factor by which a kernel may look slower than the fastest and still be weighed exactly.
_SLOWER = 1.6


def rank_strategies(asked: Asked, ranks: int, links: Links, strategies: Sequence[str]) -> Ranking:
    """The strategies that take a problem on some ranks. Each mesh and placement has its fastest kernels.

    Args:
        asked: The question.
        ranks: Ranks, 2 or more.
        links: The links between the ranks.
        strategies: Strategies to choose from.
    """
    refused: list[Refused] = []
    unmeasured: dict[str, Unmeasured] = {}
    rough: list[Weighed] = []
    for way in ways_of(asked, ranks, links, strategies):
        if isinstance(way, Refused):
            refused.append(way)
            continue
        try:
            rough.append(_roughly(way))
        except _NotKnownError as error:
            unmeasured.setdefault(way.strategy, Unmeasured("any kernel", str(error), way.strategy))
        except UnsupportedError as error:
            unmeasured.setdefault(way.strategy, Unmeasured("any kernel", str(error).rstrip("."), way.strategy))
    left = sorted(rough, key=lambda one: one.total)
    choices: list[Choice] = []
    exact: list[Weighed] = []
    blind: list[str] = []  # ways without evidence: valid, and not ranked
    while left and not any(choice.fits is not False for choice in choices):
        found, more, left = _refined(left)
        exact += found
        refused += (one for one in more if one.reasons)
        blind += (str(one.strategy) for one in more if not one.reasons)
        for one in found:
            try:
                choices.append(choice_of(one))
            except UnsupportedError as error:  # a step that was not checked may be refused
                refused.append(Refused(None, name_of(one.way), (str(error),)))
    known = {choice.strategy for choice in choices}
    without = tuple(one for name, one in unmeasured.items() if name not in known)
    manifests = [asked.registry.strategy(name) for name in strategies]
    notes = (text for one in manifests for text in left_out(ranks, one.name, one.axes, links.per_host))
    unranked = [f"no evidence ranks {', '.join(blind)}"] if blind else []
    return Ranking(tuple(choices), without, tuple(refused), (*notes, *across(exact), *unranked))


class _NotKnownError(UnsupportedError):
    """There is no prediction, because evidence or the strategy's schedule is missing."""


def _calls(way: Way) -> list[StrategyCall]:
    """The calls of all directions."""
    calls = [way.call(direction) for direction in way.asked.directions]
    found = [call for call in calls if call is not None]
    if len(found) < len(calls):
        raise _NotKnownError(f"{way.strategy} states no schedule, so its time is not predicted")
    return found


def _roughly(way: Way) -> Weighed:
    """A way with the kernels that are quickest by the tiles of the whole mask.

    Raises:
        UnsupportedError: There is no prediction.
    """
    names, timelines = [], []
    for call in _calls(way):
        seconds = {name: way.rough(name, call.problem.direction) for name in way.asked.kernels}
        steps = {name: way.pairs.seconds(taken) for name, taken in seconds.items() if taken is not None}
        if not steps:
            raise _NotKnownError(f"no evidence on {way.asked.device_name}")
        # The fastest kernel on a layout is the one whose slowest rank computes least.
        best = min(steps, key=lambda name: float(steps[name].sum(axis=1).max()))
        names.append(best)
        timelines.append(call.takes(steps[best], way.links.network, way.links.rates))
    return Weighed(way, tuple(names), tuple(timelines))


def _refined(rough: Sequence[Weighed]) -> tuple[list[Weighed], list[Refused], list[Weighed]]:
    """The best ways, weighed exactly, until enough are known and the remaining ways are predicted to be slower.

    Returns:
        The valid ways (the fastest first), the refused ways, and the ways that were not weighed.
    """
    known: list[Weighed] = []
    refused: list[Refused] = []
    for place, one in enumerate(rough):
        half = 2 if one.way.layout.world_size >= _MANY else 1
        least = _EXACT // half
        enough = len(known) >= least and one.total > sorted(found.total for found in known)[least - 1]
        if enough or len(known) == _AT_MOST // half:
            return sorted(known, key=lambda found: found.total), refused, list(rough[place:])
        found = _exactly(one.way)
        known += [] if isinstance(found, Refused) else [found]
        refused += [found] if isinstance(found, Refused) else []
    return sorted(known, key=lambda found: found.total), refused, []


def _exactly(way: Way) -> Weighed | Refused:
    """A way with its fastest valid kernels, or the reasons why it has none. No evidence is no reason."""
    calls = _calls(way)
    kernels = _promising(way)
    roles: tuple[Role, ...] = ("forward", "backward", "both") if way.asked.training else ("forward",)
    refusals = {(name, role): way.refusal(name, role) for name, role in product(kernels, roles)}
    valid = {role: [name for name in kernels if refusals[name, role] is None] for role in roles}
    timelines: dict[tuple[str, str, str], Timeline] = {}
    for role, call in product(roles, calls):
        direction = call.problem.direction
        if role in ("both", direction):
            for name in valid[role]:
                if (taken := way.exact(name, role, direction)) is not None:
                    steps = way.pairs.seconds(taken)
                    timelines[name, role, direction] = call.takes(steps, way.links.network, way.links.rates)
    found = list(_combinations(way, timelines))
    if found:
        return min(found, key=lambda one: one.total)
    reasons = dict.fromkeys(
        f"{name}: {reason}" for (name, _), verdict in refusals.items() if verdict for reason in verdict.reasons
    )
    return Refused(None, name_of(way), tuple(reasons))


def _promising(way: Way) -> list[str]:
    """Kernels that may be the quickest in a direction: not much slower by the tiles of the whole mask."""
    found: dict[str, None] = {}
    for direction in way.asked.directions:
        taken = {name: way.rough(name, direction) for name in way.asked.kernels}
        sums = {name: float(way.pairs.seconds(each).sum(1).max()) for name, each in taken.items() if each is not None}
        found |= dict.fromkeys(name for name, total in sums.items() if total <= _SLOWER * min(sums.values()))
    return list(found)


def _combinations(way: Way, timelines: dict[tuple[str, str, str], Timeline]) -> Iterator[Weighed]:
    """A way with each kernel and each pair that takes it."""
    directions = way.asked.directions
    if len(directions) == 1:
        for (name, _, _), timeline in timelines.items():
            yield Weighed(way, (name,), (timeline,))
        return
    for name in dict.fromkeys(name for name, role, _ in timelines if role == "both"):
        both = [timelines.get((name, "both", direction)) for direction in directions]
        found = tuple(timeline for timeline in both if timeline is not None)
        if len(found) == len(directions):
            yield Weighed(way, (name, name), found)
    firsts = [(name, timeline) for (name, role, _), timeline in timelines.items() if role == "forward"]
    seconds = [(name, timeline) for (name, role, _), timeline in timelines.items() if role == "backward"]
    for (forward, before), (backward, after) in product(firsts, seconds):
        if forward != backward:
            yield Weighed(way, (forward, backward), (before, after))
