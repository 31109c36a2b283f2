"""Ranking strategies: every strategy, mesh and placement on some ranks, each with its quickest kernels.

All layouts are predicted by the tiles of the whole mask first, which takes no cut. The most promising ones are then
predicted exactly, from the cut of each step, and their kernels are checked, until as many are known as an answer shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from longca.errors import UnsupportedError
from longca_advice.candidates import Ranking
from longca_advice.choices import Choice, Refused, Unmeasured
from longca_advice.layout_costs import LayoutCosts, Role
from longca_advice.meshes import few_meshes, laid_out, left_out, mesh_text
from longca_advice.request import Request
from longca_advice.sources import Links
from longca_advice.strategy_candidates import StrategyCandidate, across, candidate_of, roles_of

__all__ = ["exactly", "layout_costs_of", "rank_strategies", "roughly"]

#: Layouts that are predicted exactly: the least number, if so many exist, and the greatest.
_EXACT, _AT_MOST = 8, 12

#: From this number of ranks on, half as many layouts are predicted exactly.
_MANY = 128

#: The factor by which a kernel may look slower than the fastest valid one and still be predicted exactly.
_SLOWER = 1.6


def rank_strategies(request: Request, ranks: int, links: Links, strategies: Sequence[str]) -> Ranking:
    """The strategies that take a problem on some ranks. Each mesh and placement has its fastest kernels.

    Args:
        request: The question.
        ranks: Ranks, 2 or more.
        links: The links between the ranks.
        strategies: Strategies to choose from.
    """
    refused: list[Refused] = []
    unmeasured: dict[str, Unmeasured] = {}
    rough: list[StrategyCandidate] = []
    for costs in layout_costs_of(request, ranks, links, strategies):
        if isinstance(costs, Refused):
            refused.append(costs)
            continue
        try:
            rough.append(roughly(costs))
        except UnsupportedError as error:
            unmeasured.setdefault(costs.strategy, Unmeasured("any kernel", str(error).rstrip("."), costs.strategy))
    left = sorted(rough, key=lambda one: one.seconds)
    choices: list[Choice] = []
    exact: list[StrategyCandidate] = []
    blind: list[str] = []  # layouts without evidence: valid, and not ranked
    while left and not any(choice.fits is not False for choice in choices):
        found, more, left = _refined(left)
        exact += found
        refused += (one for one in more if one.reasons)
        blind += (str(one.strategy) for one in more if not one.reasons)
        for one in found:
            try:
                choices.append(one.choice())
            except UnsupportedError as error:  # a step that was not checked may be refused
                refused.append(Refused(None, one.costs.name, (str(error),)))
    known = {choice.strategy for choice in choices}
    without = tuple(one for name, one in unmeasured.items() if name not in known)
    manifests = [request.registry.strategy(name) for name in strategies]
    notes = (text for one in manifests for text in left_out(ranks, one.name, one.axes, links.per_host))
    unranked = [f"no evidence ranks {', '.join(blind)}"] if blind else []
    return Ranking(tuple(choices), without, tuple(refused), (*notes, *across(exact), *unranked))


def layout_costs_of(
    request: Request, ranks: int, links: Links, strategies: Sequence[str]
) -> Iterator[LayoutCosts | Refused]:
    """Every distinct layout, once. A placement without a layout is refused with the reason.

    Args:
        request: The question.
        ranks: Ranks, 2 or more.
        links: The links between the ranks.
        strategies: Strategies to choose from.
    """
    for name in strategies:
        manifest = request.registry.strategy(name)
        sizes_of_all = few_meshes(ranks, manifest.axes, links.per_host)
        if not sizes_of_all:
            axes = " × ".join(manifest.axes)
            yield Refused(None, name, (f"{ranks} devices cannot be split into {axes}, 2 or more along each",))
        refusals: dict[str, list[tuple[str, str]]] = {}
        for sizes in sizes_of_all:
            here: dict[str, list[str]] = {}
            layouts = laid_out(request.registry, name, request.problem, sizes, refusals=here)
            yield from (LayoutCosts(request, links, layout) for layout in dict.fromkeys(layouts))
            for reason, placements in here.items():
                refusals.setdefault(reason, []).extend((mesh_text(sizes), placement) for placement in placements)
        for reason, found in refusals.items():
            yield Refused(None, _part_of(name, found, len(sizes_of_all), len(manifest.placements)), (reason,))


def _part_of(name: str, found: Sequence[tuple[str, str]], meshes: int, placements: int) -> str:
    """The name of a strategy, with the affected meshes and placements unless all of them are affected."""
    some, placed = dict.fromkeys(mesh for mesh, _ in found), dict.fromkeys(placement for _, placement in found)
    on = "" if len(some) == meshes else f" on {len(some)} of {meshes} meshes"
    return name + on + ("" if len(placed) == placements else f" placed {', '.join(placed)}")


def roughly(costs: LayoutCosts, named: tuple[str, ...] | None = None) -> StrategyCandidate:
    """A layout with the kernels that are quickest by the tiles of the whole mask.

    Args:
        costs: The layout.
        named: The kernel of each direction, or None to choose them.

    Raises:
        UnsupportedError: There is no prediction.
    """
    if any(costs.call(direction) is None for direction in costs.request.directions):
        raise UnsupportedError(f"{costs.strategy} states no schedule, so its time is not predicted")
    # The fastest kernel on a layout is the one whose slowest rank computes least.
    kernels = named or [min(each, key=lambda name: each[name], default="") for each in _slowest(costs)]
    found = candidate_of(costs, kernels, exactly=False) if all(kernels) else None
    if found is None:
        raise UnsupportedError(f"no evidence on {costs.request.device_name}")
    return found


def _slowest(costs: LayoutCosts) -> list[dict[str, float]]:
    """For each direction, the seconds that the slowest rank computes with each kernel that has evidence."""
    found = []
    for direction in costs.request.directions:
        seconds = {name: costs.slowest(name, direction) for name in costs.request.kernels_in(direction)}
        found.append({name: each for name, each in seconds.items() if each is not None})
    return found


def _refined(
    rough: Sequence[StrategyCandidate],
) -> tuple[list[StrategyCandidate], list[Refused], list[StrategyCandidate]]:
    """The best layouts, predicted exactly, until enough are known and the remaining layouts are predicted to be slower.

    Returns:
        The valid layouts (the fastest first), the refused layouts, and the layouts that were not predicted.
    """
    known: list[StrategyCandidate] = []
    refused: list[Refused] = []
    for place, one in enumerate(rough):
        half = 2 if one.costs.layout.world_size >= _MANY else 1
        least = _EXACT // half
        enough = len(known) >= least and one.seconds > sorted(found.ranked for found in known)[least - 1]
        if enough or len(known) == _AT_MOST // half:
            return sorted(known, key=lambda found: found.ranked), refused, list(rough[place:])
        found = exactly(one.costs)
        known += [] if isinstance(found, Refused) else [found]
        refused += [found] if isinstance(found, Refused) else []
    return sorted(known, key=lambda found: found.ranked), refused, []


def exactly(costs: LayoutCosts, named: tuple[str, ...] | None = None) -> StrategyCandidate | Refused:
    """A layout with its fastest valid kernels, or the reasons why it has none. No evidence is no reason.

    The arguments are those of `roughly`.
    """
    kernels = dict.fromkeys(named) if named else _promising(costs)
    directions = costs.request.directions
    roles: tuple[Role, ...] = ("forward", "backward", "both") if len(directions) > 1 else ("forward",)
    refusals = {(name, role): costs.refusal(name, role) for name, role in product(kernels, roles)}
    valid = (
        names
        for names in product(kernels, repeat=len(directions))
        if (costs.request.allows(names) if named is None else names == named)
        and all(refusals[each] is None for each in zip(names, roles_of(names), strict=True))
    )
    found = [one for names in valid if (one := candidate_of(costs, names)) is not None]
    if found:
        return min(found, key=lambda one: one.ranked)
    reasons = dict.fromkeys(
        f"{name}: {reason}" for (name, _), verdict in refusals.items() if verdict for reason in verdict.reasons
    )
    return Refused(None, costs.name, tuple(reasons))


def _promising(costs: LayoutCosts) -> list[str]:
    """Kernels that may be the quickest in a direction: by the tiles of the mask little slower than a valid one."""
    found: dict[str, None] = {}
    directions, has_pairs = costs.request.directions, costs.request.has_own_capability
    roles: tuple[Role, ...] = ("forward", "backward") if has_pairs or len(directions) == 1 else ("both", "both")
    for role, seconds in zip(roles, _slowest(costs), strict=False):
        limit = float("inf")
        for name in sorted(seconds, key=lambda name: seconds[name]):
            if seconds[name] > limit:
                break
            found.setdefault(name)
            if limit == float("inf") and costs.refusal(name, role) is None:
                limit = _SLOWER * seconds[name]
    return list(found)
