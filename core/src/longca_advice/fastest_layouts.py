"""Fastest layouts: the strategy and the placement that are predicted to be fastest on some ranks, with their kernels.

A first estimate predicts all layouts by the tiles of the whole mask. The layouts that look about as fast as the fastest
are then predicted exactly, as `longca_advice.strategies` does it for a recommendation. Ranks are on one host, because
nothing says how hosts are linked. The least nominal cost decides (`longca_advice.nominal`) if evidence lacks the kernel
on the device, or the strategy states no schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from longca.errors import UnsupportedError
from longca.manifests import Device, KernelManifest, Layout, Problem
from longca.manifests.pairs import join, split
from longca.manifests.verdict import paragraph
from longca.plugins import Asked as Kernel
from longca.plugins import Registry
from longca_advice.capacity import Capacity
from longca_advice.choices import Refused
from longca_advice.devices import evidence_name
from longca_advice.layout_costs import LayoutCosts
from longca_advice.meshes import laid_out
from longca_advice.nominal import nominal_cost
from longca_advice.request import Request, with_evidence_of
from longca_advice.sources import sources
from longca_advice.strategies import exactly, roughly
from longca_advice.strategy_candidates import StrategyCandidate

__all__ = ["costs_of_layouts", "place", "predicted", "quickest"]

#: Limits for the layouts that are predicted exactly: how much slower than the fastest they may look, and their number.
#: The first layout of a strategy that has none of them is predicted too: if it is less of an extrapolation, it may rank
#: first.
_ALIKE, _LAYOUTS = 1.2, 3

#: Reasons against a kernel that hold for every mask.
_ABSENT = frozenset({"device", "dtype", "head_dim", "package"})


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
    named = None if kernel is None else (split(kernel) or (kernel, kernel))[: len(request.directions)]
    rough = []
    for costs in candidates:
        with suppress(UnsupportedError):
            rough.append(roughly(costs, named))
    found: list[StrategyCandidate] = []
    for one in sorted(rough, key=lambda one: one.seconds):
        if found and one.seconds > _ALIKE * min(each.seconds for each in found):
            break
        if len(found) >= _LAYOUTS and one.costs.strategy in {each.costs.strategy for each in found}:
            continue
        exact = exactly(one.costs, named)
        found += [] if isinstance(exact, Refused) else [exact]
    # The first of several equally fast layouts is taken.
    place = {costs: index for index, costs in enumerate(candidates)}
    found.sort(key=lambda one: (not one.fits, float(f"{one.ranked:.6g}"), place[one.costs]))
    return found


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
    request = replace(request, kernels=tuple(name for name in request.kernels if _may_run(request, name)))
    links = known.links(evidence_name(measured or problem.device), layouts[0].world_size) if layouts else None
    return [LayoutCosts(request, links, layout) for layout in layouts if links is not None]


def _may_run(request: Request, kernel: str) -> bool:
    """Whether evidence knows a kernel, and nothing that holds for every mask is against it."""
    return any(request.costs.knows(request.key(kernel, direction)) for direction in request.directions) and not (
        _ABSENT & {reason.code for reason in request.resolve(kernel, request.problem).reasons}
    )


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
