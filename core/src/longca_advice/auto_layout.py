"""auto_layout: the strategy and the placement that `"auto"` takes if several ranks share a problem, with the reason.

The choice with the least predicted time wins, for a forward, or for forward and backward together if gradients are
requested. A first estimate predicts all layouts by the tiles of the whole mask. The layouts that look about as fast as
the fastest are then predicted exactly, as `longca_advice.strategies` does it for a recommendation. Kernels and pairs
are compared under each layout. A choice that does not fit into the device's memory comes after all that fit.

Several masks share one placement. The least sum of their predicted times, by their weights, wins. Each mask has its own
fastest kernel.

If nothing has a prediction for this GPU, the predictions for the measured GPU with the nearest compute capability
decide, and the reason says so. Pairs count only if the compute capability is the same.

Without any prediction the first valid strategy wins, in the order `ulysses`, `ring_all_gather`, and then the order of
`longca plugins`. The kernel then comes from `longca_advice.auto_kernel`, and the placement has the least nominal cost
(`longca_advice.nominal`). Strategies are in the same order on several hosts, because nothing says how these are linked.

`longca.attention`, `longca.layout` and the benchmark's suites all ask `arrange`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from longca.adviser import AUTO, Arrangement, Choice
from longca.errors import UnknownNameError, UnsupportedError
from longca.manifests import Device, Direction, Layout, Problem
from longca.manifests.pairs import split
from longca.manifests.verdict import paragraph
from longca.plan_cache import PlanCache
from longca.plugins import Registry
from longca.shared_layouts import WeightedProblems, shared_layouts
from longca_advice.auto_kernel import choose, explained, interval, was_chosen_for
from longca_advice.choices import Refused
from longca_advice.devices import Capacity, evidence_name
from longca_advice.known_plugins import installable, with_known
from longca_advice.layout_costs import LayoutCosts
from longca_advice.meshes import mesh_text
from longca_advice.nominal import nominal_cost
from longca_advice.request import Request, similar_gpus, with_evidence_of
from longca_advice.sources import sources
from longca_advice.strategies import StrategyCandidate, exactly, roughly

__all__ = ["FIRST", "arrange", "choose", "choose_kernel"]

#: The strategies that are taken first without evidence.
FIRST = ("ulysses", "ring_all_gather")

#: Limits for the layouts that are predicted exactly: how much slower than the fastest they may look, and their number.
#: The first layout of a strategy that has none of them is predicted too: if it is less of an extrapolation, it may rank
#: first.
_ALIKE, _LAYOUTS = 1.2, 3

#: Reasons against a kernel that hold for every mask.
_ABSENT = frozenset({"device", "dtype", "head_dim", "package"})

#: The reason why strategies are not compared.
_SEVERAL_HOSTS = (
    ". The strategy is the first valid one: the ranks are of several hosts, and nothing says how these are linked; "
    "`longca recommend --network` ranks strategies for a network"
)

#: The layout of each mask under one strategy and placement.
_Layouts = tuple[Layout, ...]

#: Candidates that were predicted, the fastest first: each has a candidate of every mask.
_Ranked = list[list[StrategyCandidate]]

#: The latest choices.
_ARRANGED: PlanCache[Arrangement] = PlanCache()


def arrange(
    registry: Registry,
    weighted: WeightedProblems,
    wanted: Mapping[str, Mapping[str, int]],
    kernel: str,
    placement: str = AUTO,
    one_host: bool = True,
) -> Arrangement:
    """The choice for training, or for forwards if a mask has no kernel with a backward. The latest choices are cached.

    The choice is the same for both directions of a problem, because a model is trained and evaluated on the same
    shards.

    Args:
        registry: The registry of strategies and kernels to choose from.
        weighted: The problem of all ranks together, with a weight. Several differ in their masks alone.
        wanted: The strategies to choose from, each with the ranks along its axes.
        kernel: Name of the kernel or pair, or `auto` to choose it too.
        placement: Name of the placement, or `auto` to choose it too.
        one_host: Whether all ranks are on one host. If not, strategies are not compared.

    Raises:
        UnsupportedError: Nothing is valid. The message gives the reasons.
        UnknownNameError: Nobody provides the kernel, or no strategy has the placement.
        RequestError: The evidence cannot be read.
    """

    def plain(problem: Problem) -> Problem:
        """The problem as `longca.layout` asks for it, so that all calls get its answer."""
        return replace(
            problem,
            direction=Direction.BACKWARD,
            softmax_scale=None,
            softcap=None,
            deterministic=False,
            sinks=False,
            composed=False,
        )

    trained = [(plain(problem), weight) for problem, weight in weighted]

    def make() -> Arrangement:
        try:
            return _arranged(registry, trained, wanted, kernel, placement, one_host)
        except UnsupportedError:
            forwards = [(problem.in_direction(Direction.FORWARD), weight) for problem, weight in trained]
            return _arranged(registry, forwards, wanted, kernel, placement, one_host)

    first, masks = trained[0][0], tuple((problem.concrete_mask.key, weight) for problem, weight in trained)
    sizes = tuple((name, tuple(axes.items())) for name, axes in wanted.items())
    return _ARRANGED.get(first.mask, (registry, first.settings, masks, sizes, kernel, placement, one_host), make)


def choose_kernel(registry: Registry, problem: Problem, layout: Layout) -> Choice:
    """The kernel or the pair to compute the steps of a layout with. The errors are those of `arrange`."""
    if layout.strategy is not None and (found := _ranked(registry, [(problem, 1.0)], [(layout,)], AUTO)):
        return _with_better(_chosen(found), registry, problem)
    return choose(problem, registry, {name: registry.resolve(name, problem, layout) for name in registry.kernels})


def _arranged(
    registry: Registry,
    weighted: WeightedProblems,
    wanted: Mapping[str, Mapping[str, int]],
    kernel: str,
    placement: str,
    one_host: bool,
) -> Arrangement:
    if not any(placement in (AUTO, *registry.strategy(name).placements) for name in wanted):
        every = {name for manifest in registry.strategies.values() for name in manifest.placements}
        raise UnknownNameError("placement", placement, sorted(every))
    if kernel != AUTO:
        registry.manifests(kernel)  # an unknown one is refused as such
    refusals: dict[str, list[str]] = {}
    by_strategy: list[list[_Layouts]] = []
    for name in sorted(wanted, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST)):
        placements = [one for one in registry.strategy(name).placements if placement in (AUTO, one)]
        by_strategy.append(_candidates(registry, weighted, name, wanted[name], placements, refusals))
    are_compared = one_host or len(wanted) == 1
    about = "" if are_compared else _SEVERAL_HOSTS
    for candidates in [list(chain(*by_strategy))] if are_compared else by_strategy:
        if found := _ranked(registry, weighted, candidates, kernel):
            choice = _chosen(found)
            if kernel == AUTO:
                choice = _with_better(choice, registry, weighted[0][0])
            return _arrangement(found[0][0].costs.layout, replace(choice, reason=choice.reason + about))
        if (first := _least_nominal(registry, weighted, candidates, kernel, refusals)) is not None:
            layouts, kernels = first
            return _arrangement(layouts[0], _unranked(weighted, layouts[0], kernels, len(wanted), about))
    reasons = (f"{', '.join(where)}: {reason}" for reason, where in refusals.items())
    raise UnsupportedError(paragraph(["no strategy and placement suits", *reasons]))


def _candidates(
    registry: Registry,
    weighted: WeightedProblems,
    strategy: str,
    sizes: Mapping[str, int],
    placements: Sequence[str],
    refusals: dict[str, list[str]],
) -> list[_Layouts]:
    """The layouts of a strategy by its placements. Receives the reasons against placements that have none."""
    found: list[_Layouts] = []
    for placement in placements:
        try:
            found.append(shared_layouts(registry, weighted, strategy, sizes, placement))
        except UnsupportedError as error:
            refusals.setdefault(str(error), []).append(f"{strategy} {placement}")
    return found


def _ranked(registry: Registry, weighted: WeightedProblems, candidates: Sequence[_Layouts], kernel: str) -> _Ranked:
    """The predictions by the evidence of the device, or else of the most similar GPU that has any. May be empty."""
    named = None if kernel == AUTO else kernel
    each = (_predicted(registry, weighted, candidates, named, gpu) for gpu in similar_gpus(weighted[0][0].device))
    return next(filter(None, each), [])


def _predicted(
    registry: Registry,
    weighted: WeightedProblems,
    candidates: Sequence[_Layouts],
    kernel: str | None,
    gpu: Device | None,
) -> _Ranked:
    """The layouts that are predicted to be fast for one of the masks, by the evidence of a GPU. May be empty."""
    costs: list[list[LayoutCosts]] = []
    exact: dict[tuple[int, int], StrategyCandidate] = {}
    for index, (problem, _) in enumerate(weighted):
        costs.append(_costs_of(registry, problem, [layouts[index] for layouts in candidates], gpu))
        place = {each: number for number, each in enumerate(costs[index])}
        exact |= {(place[one.costs], index): one for one in _fastest(costs[index], kernel)}
    found = []
    for number in sorted({number for number, _ in exact}):
        ones = [
            exact.get((number, index)) or next(iter(_fastest([each[number]], kernel)), None)
            for index, each in enumerate(costs)
        ]
        known = [one for one in ones if one is not None]
        if len(known) == len(ones):
            seconds = sum(weight * one.ranked for (_, weight), one in zip(weighted, known, strict=True))
            found.append((not all(one.fits for one in known), float(f"{seconds:.6g}"), known))
    return [known for *_, known in sorted(found, key=lambda each: each[:2])]


def _costs_of(registry: Registry, problem: Problem, layouts: Sequence[Layout], gpu: Device | None) -> list[LayoutCosts]:
    """The costs of a problem's layouts on one host, by the evidence of a GPU, or of the problem's device for None."""
    if not layouts:
        return []
    training, known = problem.direction == "backward", sources()
    kernels = tuple(registry.kernels)
    request = Request(problem, training, registry, known.costs, Capacity.of(problem.device), kernels, anywhere=False)
    request = with_evidence_of(request, gpu)
    request = replace(request, kernels=tuple(name for name in request.kernels if _may_run(request, name)))
    links = known.links(evidence_name(gpu or problem.device), layouts[0].world_size)
    return [LayoutCosts(request, links, layout) for layout in layouts]


def _may_run(request: Request, kernel: str) -> bool:
    """Whether evidence knows a kernel, and nothing that holds for every mask is against it."""
    return any(request.costs.knows(request.key(kernel, direction)) for direction in request.directions) and not (
        _ABSENT & {reason.code for reason in request.resolve(kernel, request.problem).reasons}
    )


def _fastest(candidates: Sequence[LayoutCosts], kernel: str | None) -> list[StrategyCandidate]:
    """The layouts that look about as fast as the fastest, predicted exactly, with a kernel or pair or any for None."""
    named = None
    if kernel is not None and candidates:
        named = (split(kernel) or (kernel, kernel))[: len(candidates[0].request.directions)]
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
    return found


def _least_nominal(
    registry: Registry,
    weighted: WeightedProblems,
    candidates: Sequence[_Layouts],
    kernel: str,
    refusals: dict[str, list[str]],
) -> tuple[_Layouts, list[str]] | None:
    """The candidate of least nominal cost of the first strategy that kernels take, with its kernels, or None."""
    fitting: list[tuple[float, _Layouts, list[str]]] = []
    for layouts in candidates:
        if fitting and layouts[0].strategy != fitting[0][1][0].strategy:
            break
        try:
            kernels = [
                _kernel(registry, each[0], layout, kernel) for each, layout in zip(weighted, layouts, strict=True)
            ]
        except UnsupportedError as error:
            refusals.setdefault(str(error), []).append(f"{layouts[0].strategy} {layouts[0].placement}")
            continue
        cost = sum(
            weight * nominal_cost(registry.manifests(name), problem, layout)
            for (problem, weight), layout, name in zip(weighted, layouts, kernels, strict=True)
        )
        fitting.append((cost, layouts, kernels))
    return min(fitting, key=lambda one: one[0])[1:] if fitting else None


def _kernel(registry: Registry, problem: Problem, layout: Layout, kernel: str) -> str:
    """The kernel or the pair that takes every step of a layout."""
    if kernel == AUTO:
        verdicts = {name: registry.resolve(name, problem, layout) for name in registry.kernels}
        return choose(problem, registry, verdicts).kernel
    registry.resolve(kernel, problem, layout).check()
    return kernel


def _arrangement(layout: Layout, choice: Choice) -> Arrangement:
    return Arrangement(str(layout.strategy), str(layout.placement), choice)


def _chosen(found: _Ranked) -> Choice:
    """The fastest prediction as a choice with its reason."""
    (best, *more), *others = found
    if more:
        ones = [best, *more]
        names = " and ".join(dict.fromkeys(one.kernel for one in ones))
        labels = ", ".join(one.request.problem.mask.label for one in ones)
        times = ", ".join(f"{one.kernel} takes {interval(one)} of {one.request.problem.mask.label}" for one in ones)
        said = filter(None, [f"the least predicted sum: {times}", best.request.from_similar_gpu])
        return Choice(names, f"{names} with {best.costs.name} for {labels}", ". ".join(said))
    after = "Nothing else was about as quick"
    if others:
        after = f"Next is {others[0][0].title}: {interval(others[0][0])}"
    sentences = [after, *(["No choice fits into the memory"] if not best.fits else [])]
    return explained(best, sentences, best.fits)


def _with_better(choice: Choice, registry: Registry, problem: Problem) -> Choice:
    """A choice with a kernel that is not installed, if that is clearly faster for the whole mask on one device."""
    if was_chosen_for(problem, registry) or not installable(with_known(registry)):
        return choice
    with suppress(UnsupportedError):
        return replace(choice, better=choose(problem, registry).better)
    return choice


def _unranked(
    weighted: WeightedProblems, layout: Layout, kernels: Sequence[str], strategies: int, about: str
) -> Choice:
    """The first valid strategy as a choice, with the reason why no evidence ranks it."""
    problem, names = weighted[0][0], " and ".join(dict.fromkeys(kernels))
    labels = ", ".join(each.mask.label for each, _ in weighted)
    title = f"{names} with {layout.strategy} ({mesh_text(dict(layout.axis_sizes))}, {layout.placement}) for {labels}"
    title += " in training" * (problem.direction == "backward")
    reason = (
        f"the {'least nominal cost' if strategies == 1 else 'first valid strategy'}. It is not ranked by evidence: no "
        f"measurement on {evidence_name(problem.device)} says how fast the valid choices are; `longca run` measures "
        f"them{about}"
    )
    return Choice(names, title, reason, wrong=sources().notes)
