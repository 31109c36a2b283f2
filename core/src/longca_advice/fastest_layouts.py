"""Fastest layouts: the strategy and the placement that are predicted to be fastest on some ranks, with their kernels.

A first estimate predicts all layouts by the tiles of the whole mask. The layouts that look about as fast as the fastest
are then predicted exactly, from the cut of each step, if the kernels take every step. So most layouts are never cut,
and no kernel is asked whether it takes their steps. Ranks are on one host, because nothing says how hosts are linked.
The least nominal cost decides (`longca_advice.nominal`) if evidence lacks the kernel on the device, or the strategy
states no schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import islice, product

from longca.errors import UnsupportedError
from longca.manifests import Device, KernelManifest, Layout, Problem
from longca.manifests.pairs import join, split
from longca.manifests.verdict import paragraph
from longca.plugins import Asked as Kernel
from longca.plugins import Registry
from longca_advice.capacity import Capacity
from longca_advice.devices import evidence_name
from longca_advice.layout_costs import LayoutCosts, Role, predict_together
from longca_advice.meshes import laid_out
from longca_advice.nominal import nominal_cost
from longca_advice.request import Request, with_evidence_of
from longca_advice.sources import sources
from longca_advice.strategy_candidates import StrategyCandidate, candidate_of, roles_of

__all__ = ["costs_of_layouts", "place", "predicted", "quickest"]

#: Limits for the layouts that are predicted exactly: how much slower than the fastest they may look, and their number.
#: The first layout of a strategy that has none of them is predicted too: if it is less of an extrapolation, it may rank
#: first.
_ALIKE, _LAYOUTS = 1.2, 3

#: Reasons against a kernel that hold for every mask.
_ABSENT = frozenset({"device", "dtype", "head_dim", "package"})

#: Kernels of each role that are candidates for a layout, the fastest first.
_KERNELS = 2


def quickest(request: Request, candidates: Sequence[LayoutCosts], kernel: str | None = None) -> list[StrategyCandidate]:
    """The layout that is predicted to be fastest, and the other layouts that were predicted exactly, the fastest first.

    Layouts that fit into the memory come before layouts that do not.

    Args:
        request: The question. The kernels to choose from are its kernels.
        candidates: The layouts to share it by.
        kernel: The kernel or pair to take, or None to choose it too.

    Returns:
        The layouts. Empty if evidence predicts the time of no valid layout.
    """
    wanted = _known(request, kernel)
    if not wanted:
        return []
    predict_together(candidates)
    if kernel is None:
        found_exactly = [*_exactly(candidates, wanted, lambda costs: _promising(costs, wanted))]
        limit = _ALIKE * min((one.seconds for one in found_exactly), default=float("inf"))
        known = [costs for costs in candidates if any(costs.measured(direction) for direction in request.directions)]
        found_exactly += _exactly(known, wanted, lambda costs: _measured_names(costs, wanted), limit)
    else:
        found_exactly = [*_exactly(candidates, (), lambda costs: [wanted])]
    unlike = {(one.costs, one.kernels): one for one in found_exactly}.values()
    # The first of several equally fast layouts is taken.
    place = {costs: index for index, costs in enumerate(candidates)}
    found = sorted(unlike, key=lambda one: (float(f"{one.ranked:.6g}"), place[one.costs]))
    first = next((one for one in found if one.fits), next(iter(found), None))
    return [] if first is None else [first, *(one for one in found if one is not first)]


def _known(request: Request, kernel: str | None) -> tuple[str, ...]:
    """The kernel of each direction if one is named, else all candidates. Empty without evidence."""
    if kernel is not None:
        halves = split(kernel) or (kernel, kernel)
        names = halves[: len(request.directions)]
        each = zip(names, request.directions, strict=True)
        return names if all(request.costs.knows(request.key(*one)) for one in each) else ()
    return tuple(
        name
        for name in request.kernels
        if any(request.costs.knows(request.key(name, direction)) for direction in request.directions)
        and not _ABSENT & {reason.code for reason in request.resolve(name, request.problem).reasons}
    )


def _exactly(
    candidates: Sequence[LayoutCosts],
    kernels: Sequence[str],
    names_of: Callable[[LayoutCosts], Sequence[tuple[str, ...]]],
    limit: float = float("inf"),
) -> Iterator[StrategyCandidate]:
    """The valid kernels of the layouts that look quickest, predicted exactly.

    Whether kernels take the steps of a layout is checked once its least time by any kernels is the least of all times.

    Args:
        candidates: The layouts.
        kernels: All kernels that a layout may have, for its least time. Empty to look at every layout.
        names_of: The kernels of each direction that are likely to be fastest for a layout.
        limit: The time from which on layouts are not predicted.
    """
    cut = set[LayoutCosts]()
    heap: list[tuple[float, int, int, LayoutCosts | StrategyCandidate]] = []
    for place, costs in enumerate(candidates):
        if (least := _least(costs, kernels)) is not None:
            heappush(heap, (least, place, -1, costs))
    while heap and heap[0][0] <= limit:
        _, place, _, one = heappop(heap)
        costs = one if isinstance(one, LayoutCosts) else one.costs
        if len(cut) >= _LAYOUTS and costs not in cut and costs.strategy in {other.strategy for other in cut}:
            continue
        if isinstance(one, LayoutCosts):
            for turn, names in enumerate(names_of(costs)):
                if (rough := _candidate(costs, names, exactly=False)) is not None:
                    heappush(heap, (rough.seconds, place, turn, rough))
            continue
        valid = all(_takes(costs, *each) for each in zip(one.kernels, roles_of(one.kernels), strict=True))
        if valid and (found := _candidate(costs, one.kernels)) is not None:
            limit = min(limit, _ALIKE * one.seconds)
            cut.add(costs)
            yield found


def _least(costs: LayoutCosts, kernels: Sequence[str]) -> float | None:
    """A bound of the time of a layout from below, whichever of some kernels compute its steps. None without a time."""
    try:
        each = [costs.least(tuple(kernels), direction) for direction in costs.request.directions] if kernels else [0.0]
    except UnsupportedError:
        return None
    known = [seconds for seconds in each if seconds is not None]
    return sum(known) if len(known) == len(each) else None


def _measured_names(costs: LayoutCosts, kernels: Sequence[str]) -> list[tuple[str, ...]]:
    """The promising kernels of a layout by which one direction of this very call was measured."""
    each = [costs.measured(direction) for direction in costs.request.directions]
    names = _promising(costs, kernels)
    return [one for one in names if any(kernel in known for kernel, known in zip(one, each, strict=True))]


def _promising(costs: LayoutCosts, kernels: Sequence[str]) -> list[tuple[str, ...]]:
    """The kernels of all directions that are likely to be fastest, among the kernels that take every step."""
    directions = costs.request.directions
    if not costs.request.has_own_capability:
        alone: Role = "both" if len(directions) > 1 else "forward"
        return [(name,) * len(directions) for name in _first(costs, kernels, alone, directions)]
    if len(directions) == 1:
        names = dict.fromkeys([*_first(costs, kernels, "forward", directions), *_measured(costs, kernels, "forward")])
        return [(name,) for name in names]
    measured = [_measured(costs, kernels, direction) for direction in directions]
    before = [*_first(costs, kernels, "forward", ("forward",)), *measured[0]]
    after = [*_first(costs, kernels, "backward", ("backward",)), *measured[1]]
    singles = [(name, name) for name in (*_first(costs, kernels, "both", directions), *measured[0], *measured[1])]
    pairs = [pair for pair in product(before, after) if pair[0] != pair[1]]
    return list(dict.fromkeys([*singles, *pairs]))


def _measured(costs: LayoutCosts, kernels: Sequence[str], direction: str) -> list[str]:
    """The kernels by which this very call was measured in a direction."""
    return [name for name in costs.measured(direction) if name in kernels]


def _first(costs: LayoutCosts, kernels: Sequence[str], role: Role, directions: Sequence[str]) -> list[str]:
    """The first valid kernels by the time that the slowest rank computes."""
    seconds: dict[str, float] = {}
    for name in kernels:
        sums = [each for direction in directions if (each := costs.slowest(name, direction)) is not None]
        if len(sums) == len(directions):
            seconds[name] = sum(sums)
    ranked = sorted(seconds, key=lambda name: seconds[name])
    return list(islice((name for name in ranked if _takes(costs, name, role)), _KERNELS))


def _takes(costs: LayoutCosts, kernel: str, role: Role) -> bool:
    """Whether a kernel takes every step in a role."""
    return costs.request.resolve(kernel, costs.whole(role), costs.layout).valid


def _candidate(costs: LayoutCosts, kernels: Sequence[str], exactly: bool = True) -> StrategyCandidate | None:
    """A layout with its kernels, or None if the time of a kernel or of a collective is unknown."""
    try:
        return candidate_of(costs, kernels, exactly)
    except UnsupportedError:
        return None


def place(
    registry: Registry, strategy: str, kernel: Kernel, problem: Problem, axis_sizes: Mapping[str, int]
) -> tuple[str, Layout]:
    """The placement of a strategy that is predicted to be fastest with a kernel, for `placement="auto"`.

    If several are equal, the first in the strategy's manifest wins.

    Args:
        registry: Knows the strategy and the kernel.
        strategy: The strategy's name.
        kernel: The name of a kernel or a pair. A manifest or two, which need not be registered, do too.
        problem: The problem of all ranks together.
        axis_sizes: Ranks along each of the strategy's axes.

    Returns:
        The placement's name, and its layout.

    Raises:
        UnknownNameError: Unknown strategy or kernel.
        RequestError: The sizes are for other axes than the strategy's, or below 1. Or the evidence cannot be read.
        UnsupportedError: The kernel takes every step of no placement. The message gives the reasons for each placement.
        PluginError: The layout function cannot be imported, or returns something else.
    """
    manifests = registry.manifests(kernel)
    name = kernel if isinstance(kernel, str) else join(manifests[0].name, manifests[-1].name)
    refusals: dict[str, list[str]] = {}
    fitting: dict[Layout, None] = {}
    for layout in laid_out(registry, strategy, problem, axis_sizes, refusals=refusals):
        try:
            registry.resolve(manifests, problem, layout).check()
        except UnsupportedError as error:
            refusals.setdefault(str(error), []).append(str(layout.placement))
        else:
            fitting.setdefault(layout)
    if not fitting:
        reasons = (f"{', '.join(placements)}: {reason}" for reason, placements in refusals.items())
        raise UnsupportedError(paragraph([f"no placement of {strategy} does for {name}", *reasons]))
    best = _best(registry, name, manifests, problem, list(fitting)) if len(fitting) > 1 else next(iter(fitting))
    return str(best.placement), best


def predicted(
    registry: Registry,
    problem: Problem,
    layouts: Sequence[Layout],
    kernel: str | None = None,
    capacity: Capacity | None = None,
    measured: Device | None = None,
) -> list[StrategyCandidate]:
    """The layout that is predicted to be fastest with its kernel, and others. Empty without a prediction.

    Args:
        registry: Knows the strategies and the kernels.
        problem: The problem: a forward, or a backward with the forward before it.
        layouts: The layouts, as the registry made them, on the same ranks.
        kernel: The name of a kernel or a pair, or None to choose it too.
        capacity: The memory of each rank's device, or None for no limit.
        measured: The GPU whose evidence answers, or None for the problem's own device.

    Raises:
        RequestError: The evidence cannot be read.
    """
    candidates = costs_of_layouts(registry, problem, layouts, capacity, measured)
    return quickest(candidates[0].request, candidates, kernel) if candidates else []


def costs_of_layouts(
    registry: Registry,
    problem: Problem,
    layouts: Sequence[Layout],
    capacity: Capacity | None = None,
    measured: Device | None = None,
) -> list[LayoutCosts]:
    """The costs of a problem's layouts. The arguments and errors are those of `predicted`."""
    training, known = problem.direction == "backward", sources()
    request = Request(problem, training, registry, known.costs, capacity, tuple(registry.kernels), anywhere=False)
    request = with_evidence_of(request, measured)
    links = known.links(evidence_name(measured or problem.device), layouts[0].world_size) if layouts else None
    return [LayoutCosts(request, links, layout) for layout in layouts if links is not None]


def _best(
    registry: Registry,
    name: str,
    manifests: Sequence[KernelManifest],
    problem: Problem,
    layouts: Sequence[Layout],
) -> Layout:
    """The layout with the least predicted time, or else with the least nominal cost."""
    registered = all(registry.kernels.get(manifest.name) is manifest for manifest in manifests)
    if registered and (found := predicted(registry, problem, layouts, name)):
        return found[0].costs.layout
    return min(layouts, key=lambda layout: nominal_cost(manifests, problem, layout))
