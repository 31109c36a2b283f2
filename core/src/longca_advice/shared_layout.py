"""Shared layouts: one placement for layers of several masks, each with a layout of its own.

A layer's layout cuts the layer's own mask. All layouts have the same shards, which are balanced for the weighted sum of
the masks' visible pairs. `auto` takes the strategy and the placement with the least predicted time, summed over the
masks by their weights. For each mask the fastest candidates of that mask are predicted exactly, and so are the other
masks under them. Each mask has its own fastest kernel.

Without predictions the first strategy of the stated order wins in which kernels take every mask
(`longca_advice.auto_layout`), with the placement of the least nominal cost, summed in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from longca.adviser import AUTO, Arrangement, Choice
from longca.errors import UnknownNameError, UnsupportedError
from longca.manifests import Device, Direction, Layout, Problem
from longca.plan_cache import PlanCache
from longca.plugins import Registry
from longca.shared_layouts import WeightedProblems, shared_layouts
from longca_advice.auto_kernel import capacity_of, choose
from longca_advice.auto_layout import FIRST, placements_of
from longca_advice.explanations import interval
from longca_advice.fastest_layouts import costs_of_layouts, quickest
from longca_advice.layout_costs import LayoutCosts
from longca_advice.meshes import mesh_text
from longca_advice.nominal import nominal_cost
from longca_advice.request import similar_gpus
from longca_advice.strategy_candidates import StrategyCandidate

__all__ = ["arrange_shared"]

#: The layouts of all masks under one strategy and placement.
_Layouts = tuple[Layout, ...]

#: The latest choices. A rank makes them alone.
_ARRANGED: PlanCache[Arrangement] = PlanCache(64)


def arrange_shared(
    registry: Registry,
    weighted: WeightedProblems,
    wanted: Mapping[str, Mapping[str, int]],
    kernel: str,
    placement: str,
    one_host: bool,
) -> Arrangement:
    """The strategy and the placement to take, for training, or for forwards if a mask has no kernel with a backward.

    The latest choices are cached. The arguments are as in `longca_advice.auto_layout.arrange`, with several problems.

    Raises:
        UnsupportedError: No strategy and placement suits all masks. The message gives the reasons.
        UnknownNameError: Nobody provides the kernel, or no strategy has the placement.
        RequestError: The evidence cannot be read.
    """
    trained = [
        (replace(problem, direction=Direction.BACKWARD, softmax_scale=None, deterministic=False), weight)
        for problem, weight in weighted
    ]

    def make() -> Arrangement:
        try:
            return _arranged(registry, trained, wanted, kernel, placement, one_host)
        except UnsupportedError:
            forwards = [(problem.in_direction(Direction.FORWARD), weight) for problem, weight in trained]
            return _arranged(registry, forwards, wanted, kernel, placement, one_host)

    first, masks = trained[0][0], tuple((problem.concrete_mask.key, weight) for problem, weight in trained)
    sizes = tuple((name, tuple(axes.items())) for name, axes in wanted.items())
    return _ARRANGED.get(first.mask, (registry, first.settings, masks, sizes, kernel, placement, one_host), make)


def _arranged(
    registry: Registry,
    weighted: WeightedProblems,
    wanted: Mapping[str, Mapping[str, int]],
    kernel: str,
    placement: str,
    one_host: bool,
) -> Arrangement:
    if kernel != AUTO:
        registry.manifests(kernel)  # an unknown one is refused as such
    candidates: list[_Layouts] = []
    refusals: dict[str, None] = {}
    known = False
    for name in sorted(wanted, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST)):
        for each in registry.strategy(name).placements:
            if placement not in (AUTO, each):
                continue
            known = True
            try:
                candidates.append(shared_layouts(registry, weighted, name, wanted[name], each))
            except UnsupportedError as error:
                refusals.setdefault(str(error).rstrip("."))
    if not known:
        raise UnknownNameError("placement", placement, placements_of(registry))
    if one_host or len(wanted) == 1:
        for gpu in similar_gpus(weighted[0][0].device):
            if (found := _predicted(registry, weighted, candidates, kernel, gpu)) is not None:
                return found
    first = _in_order(registry, weighted, candidates, kernel, refusals)
    if first is None:
        raise UnsupportedError(". ".join(refusals))
    return _arrangement(*first, weighted, "the least nominal cost, because no measurement ranks the valid choices")


def _predicted(
    registry: Registry,
    weighted: WeightedProblems,
    candidates: Sequence[_Layouts],
    kernel: str,
    measured: Device | None,
) -> Arrangement | None:
    """The candidate with the least predicted time of all masks, or None without a prediction.

    Args:
        registry: Knows the kernels.
        weighted: The problem of each mask with its weight.
        candidates: The candidates.
        kernel: The kernel, or `auto`.
        measured: The GPU whose evidence answers, or None for the problems' own device.
    """
    named = None if kernel == AUTO else kernel
    costs: list[list[LayoutCosts]] = []
    exact: dict[tuple[int, int], StrategyCandidate] = {}
    for index, (problem, _) in enumerate(weighted):
        layouts = [each[index] for each in candidates]
        costs.append(costs_of_layouts(registry, problem, layouts, capacity_of(problem), measured))
        place = {costs: number for number, costs in enumerate(costs[index])}
        for one in quickest(costs[index][0].request, costs[index], named) if layouts else ():
            exact.setdefault((place[one.costs], index), one)
    found: list[tuple[bool, float, _Layouts, list[StrategyCandidate]]] = []
    for number in sorted({number for number, _ in exact}):
        firsts = [
            exact.get((number, index)) or next(iter(quickest(each[number].request, [each[number]], named)), None)
            for index, each in enumerate(costs)
        ]
        ones = [one for one in firsts if one is not None]
        if len(ones) == len(firsts):
            seconds = sum(weight * one.seconds for (_, weight), one in zip(weighted, ones, strict=True))
            found.append((not all(one.fits for one in ones), float(f"{seconds:.6g}"), candidates[number], ones))
    if not found:
        return None
    _, _, chosen, ones = min(found, key=lambda each: each[:2])
    times = ", ".join(
        f"{one.kernel} takes {interval(one.seconds, *one.interval)} of {one.costs.request.problem.mask.label}"
        for one in ones
    )
    said = f"the least predicted sum: {times}", ones[0].costs.request.from_similar_gpu
    return _arrangement(chosen, [one.kernel for one in ones], weighted, ". ".join(filter(None, said)))


def _in_order(
    registry: Registry,
    weighted: WeightedProblems,
    candidates: Sequence[_Layouts],
    kernel: str,
    refusals: dict[str, None],
) -> tuple[_Layouts, list[str]] | None:
    """The candidate of least nominal cost of the first strategy that kernels take, with the kernels, or None.

    Args:
        registry: Knows the kernels.
        weighted: The problem of each mask with its weight.
        candidates: The candidates, strategy by strategy.
        kernel: The kernel, or `auto`.
        refusals: Receives the reasons against candidates.
    """
    fitting: list[tuple[float, _Layouts, list[str]]] = []
    for layouts in candidates:
        if fitting and layouts[0].strategy != fitting[0][1][0].strategy:
            break
        try:
            kernels = [
                _kernel(registry, problem, each, kernel) for (problem, _), each in zip(weighted, layouts, strict=True)
            ]
        except UnsupportedError as error:
            refusals.setdefault(str(error).rstrip("."))
            continue
        each = zip(weighted, layouts, kernels, strict=True)
        cost = sum(
            weight * nominal_cost(registry.manifests(name), problem, layout) for (problem, weight), layout, name in each
        )
        fitting.append((cost, layouts, kernels))
    return min(fitting, key=lambda one: one[0])[1:] if fitting else None


def _kernel(registry: Registry, problem: Problem, layout: Layout, kernel: str) -> str:
    """The kernel or the pair that takes every step of a layout."""
    if kernel == AUTO:
        return choose(
            problem, registry, {name: registry.resolve(name, problem, layout) for name in registry.kernels}
        ).kernel
    registry.resolve(kernel, problem, layout).check()
    return kernel


def _arrangement(layouts: _Layouts, kernels: Sequence[str], weighted: WeightedProblems, reason: str) -> Arrangement:
    first = layouts[0]
    names, placement = " and ".join(dict.fromkeys(kernels)), str(first.placement)
    labels = ", ".join(problem.mask.label for problem, _ in weighted)
    about = f"{names} with {first.strategy} ({mesh_text(dict(first.axis_sizes))}, {placement}) for {labels}"
    return Arrangement(str(first.strategy), placement, Choice(names, about, reason))
