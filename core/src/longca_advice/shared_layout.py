"""Shared layouts: one placement for layers of several masks, each with a layout of its own.

A layer's layout cuts the layer's own mask. All layouts have the same shards, which are balanced for the weighted sum of
the masks' visible pairs. `auto` takes the strategy and the placement with the least predicted time, summed over the
masks by their weights. For each mask the fastest candidates of that mask are predicted exactly, and so are the other
masks under them. Each mask has its own fastest kernel.

Without predictions the first strategy of the stated order wins in which kernels take every mask
(`longca_advice.auto_layout`), with the placement of the least nominal cost, summed in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from longca.errors import RequestError, UnknownNameError, UnsupportedError
from longca.manifests import Device, Direction, Layout, Problem
from longca.manifests.shared_placement import SharedPlacement
from longca.masks import Mask
from longca.plan_cache import PlanCache
from longca.plugins import Registry
from longca_advice.announced import Choice, interval
from longca_advice.auto_kernel import capacity_of, choose
from longca_advice.auto_layout import AUTO, FIRST, Arrangement, placements_of
from longca_advice.meshes import mesh_text
from longca_advice.nominal import nominal_cost
from longca_advice.placing import as_ways
from longca_advice.sharing import quickest
from longca_advice.stand_ins import stand_ins
from longca_advice.ways import Way
from longca_advice.weighed import Weighed

__all__ = ["WeighedProblems", "arrange_shared", "check_weighed", "shared_layouts"]

#: The problem of each mask with its weight. The problems differ in their masks alone.
WeighedProblems = Sequence[tuple[Problem, float]]

#: The layouts of all masks under one strategy and placement.
_Layouts = tuple[Layout, ...]

#: The latest choices. A rank makes them alone.
_ARRANGED: PlanCache[Arrangement] = PlanCache(64)


def check_weighed(masks: Sequence[Any]) -> tuple[tuple[Mask, float], ...]:
    """The masks that share a placement, with their weights.

    Raises:
        RequestError: No masks, anything else than pairs of a mask and a weight, a weight that is not a finite number
            above 0, or masks of different lengths.
    """
    ask = "give [(mask, weight), ...], such as [(window, 5), (full, 1)]"
    if not masks:
        raise RequestError(f"a placement was to be shared by no masks; {ask}")
    for pair in masks:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], Mask):
            given = type(pair).__name__
            raise RequestError(f"a placement was to be shared by several masks, and one entry is a {given}; {ask}")
        weight = pair[1]
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < math.inf:
            raise RequestError(
                f"the weight of {pair[0].label} is {weight!r}; give a finite number above 0, such as the number of "
                "layers with this mask"
            )
    sizes = dict.fromkeys(f"{mask.label} has {mask.seqlen_q} × {mask.seqlen_k}" for mask, _ in masks)
    if len({(mask.seqlen_q, mask.seqlen_k) for mask, _ in masks}) > 1:
        raise RequestError(
            f"masks that share a placement have one length, and these differ: {'; '.join(sizes)} queries × keys. "
            "Give masks of the same tokens, and lay other masks out by themselves"
        )
    return tuple((mask, float(weight)) for mask, weight in masks)


def shared_layouts(
    registry: Registry, weighed: WeighedProblems, strategy: str, sizes: Mapping[str, int], placement: str
) -> _Layouts:
    """The layout of each mask, with the same shards in all of them.

    Args:
        registry: Knows the strategy.
        weighed: The problem of each mask with its weight.
        strategy: The strategy's name.
        sizes: Ranks along each of its axes.
        placement: The placement's name.

    Raises:
        UnsupportedError: The strategy or the placement does not take one of the masks. Or the strategy places the masks
            one by one.
        UnknownNameError: Nobody provides the strategy or its placement.
    """
    shared = SharedPlacement(placement, [(problem.concrete_mask, weight) for problem, weight in weighed])
    layouts = []
    for problem, _ in weighed:
        try:
            layouts.append(registry.layout(strategy, problem, sizes, shared))
        except UnsupportedError as error:
            label = problem.concrete_mask.label
            raise UnsupportedError(
                f"{placement} of {strategy} does not suit all masks. With {label}: {error}"
            ) from None
    if any(layout.shards != layouts[0].shards for layout in layouts):
        raise UnsupportedError(
            f"{strategy} places the tokens of each of these masks differently when placed {placement}, because it does "
            "not know shared placements. Take contiguous or zigzag if it has them, or another strategy"
        )
    return tuple(layouts)


def arrange_shared(
    registry: Registry,
    weighed: WeighedProblems,
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
        for problem, weight in weighed
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
    weighed: WeighedProblems,
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
                candidates.append(shared_layouts(registry, weighed, name, wanted[name], each))
            except UnsupportedError as error:
                refusals.setdefault(str(error).rstrip("."))
    if not known:
        raise UnknownNameError("placement", placement, placements_of(registry))
    if one_host or len(wanted) == 1:
        for gpu in stand_ins(weighed[0][0].device):
            if (found := _predicted(registry, weighed, candidates, kernel, gpu)) is not None:
                return found
    first = _in_order(registry, weighed, candidates, kernel, refusals)
    if first is None:
        raise UnsupportedError(". ".join(refusals))
    return _arrangement(*first, weighed, "the least nominal cost, because no measurement ranks the valid choices")


def _predicted(
    registry: Registry,
    weighed: WeighedProblems,
    candidates: Sequence[_Layouts],
    kernel: str,
    measured: Device | None,
) -> Arrangement | None:
    """The candidate with the least predicted time of all masks, or None without a prediction.

    Args:
        registry: Knows the kernels.
        weighed: The problem of each mask with its weight.
        candidates: The candidates.
        kernel: The kernel, or `auto`.
        measured: The GPU whose evidence answers, or None for the problems' own device.
    """
    named = None if kernel == AUTO else kernel
    ways: list[list[Way]] = []
    weighed_exactly: dict[tuple[int, int], Weighed] = {}
    for index, (problem, _) in enumerate(weighed):
        layouts = [each[index] for each in candidates]
        ways.append(as_ways(registry, problem, layouts, capacity_of(problem), measured))
        place = {way: number for number, way in enumerate(ways[index])}
        for one in quickest(ways[index][0].asked, ways[index], named) if layouts else ():
            weighed_exactly.setdefault((place[one.way], index), one)
    found: list[tuple[bool, float, _Layouts, list[Weighed]]] = []
    for number in sorted({number for number, _ in weighed_exactly}):
        firsts = [
            weighed_exactly.get((number, index))
            or next(iter(quickest(each[number].asked, [each[number]], named)), None)
            for index, each in enumerate(ways)
        ]
        ones = [one for one in firsts if one is not None]
        if len(ones) == len(firsts):
            seconds = sum(weight * one.seconds for (_, weight), one in zip(weighed, ones, strict=True))
            found.append((not all(one.fits for one in ones), float(f"{seconds:.6g}"), candidates[number], ones))
    if not found:
        return None
    _, _, chosen, ones = min(found, key=lambda each: each[:2])
    times = ", ".join(
        f"{one.kernel} takes {interval(one.seconds, *one.interval)} of {one.way.asked.problem.mask.label}"
        for one in ones
    )
    said = f"the least predicted sum: {times}", ones[0].way.asked.stand_in
    return _arrangement(chosen, [one.kernel for one in ones], weighed, ". ".join(filter(None, said)))


def _in_order(
    registry: Registry,
    weighed: WeighedProblems,
    candidates: Sequence[_Layouts],
    kernel: str,
    refusals: dict[str, None],
) -> tuple[_Layouts, list[str]] | None:
    """The candidate of least nominal cost of the first strategy that kernels take, with the kernels, or None.

    Args:
        registry: Knows the kernels.
        weighed: The problem of each mask with its weight.
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
                _kernel(registry, problem, each, kernel) for (problem, _), each in zip(weighed, layouts, strict=True)
            ]
        except UnsupportedError as error:
            refusals.setdefault(str(error).rstrip("."))
            continue
        each = zip(weighed, layouts, kernels, strict=True)
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


def _arrangement(layouts: _Layouts, kernels: Sequence[str], weighed: WeighedProblems, reason: str) -> Arrangement:
    first = layouts[0]
    names, placement = " and ".join(dict.fromkeys(kernels)), str(first.placement)
    labels = ", ".join(problem.mask.label for problem, _ in weighed)
    about = f"{names} with {first.strategy} ({mesh_text(dict(first.axis_sizes))}, {placement}) for {labels}"
    return Arrangement(str(first.strategy), placement, Choice(names, about, reason))
