"""auto_layout: the strategy and the placement that `"auto"` takes if several ranks share a problem, with the reason.

The choice with the least predicted time wins, for a forward, or for forward and backward together if gradients are
requested. The predictions come from `longca_advice.fastest_layouts`. Kernels and pairs are compared under the strategy.
A choice that does not fit into the device's memory is passed over, unless nothing fits.

If nothing has a prediction for this GPU, the predictions for the measured GPU with the nearest compute capability
decide, and the reason says so. Pairs count only if the compute capability is the same.

Without any prediction the first valid strategy wins, in the order `ulysses`, `ring_all_gather`, and then the order of
`longca plugins`. The same rule applies to ranks of several hosts, because nothing says how the hosts are linked. The
kernel then comes from `longca_advice.auto_kernel`, and the placement from `longca_advice.fastest_layouts`.

`longca.attention`, `longca.layout` and the benchmark's suites all ask `arranged`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from longca.adviser import AUTO, Arrangement, Choice
from longca.errors import UnknownNameError, UnsupportedError
from longca.manifests import Direction, Layout, Problem, Reason, Verdict
from longca.plan_cache import PlanCache
from longca.plugins import Registry
from longca_advice.auto_kernel import capacity_of, choose
from longca_advice.devices import evidence_name
from longca_advice.explanations import explained, interval, subject
from longca_advice.fastest_layouts import place, predicted
from longca_advice.meshes import laid_out, mesh_text
from longca_advice.request import similar_gpus
from longca_advice.sources import sources
from longca_advice.strategy_candidates import StrategyCandidate

__all__ = ["FIRST", "arrange", "arranged", "choose_kernel", "placements_of"]

#: The strategies that are taken first without evidence.
FIRST = ("ulysses", "ring_all_gather")


def arranged(
    registry: Registry,
    problem: Problem,
    wanted: Mapping[str, Mapping[str, int]],
    kernel: str,
    placement: str = AUTO,
    one_host: bool = True,
) -> Arrangement:
    """The choice for training, or for a forward if no kernel has a backward. The latest choices are cached.

    The choice is the same for both directions of a problem, because a model is trained and evaluated on the same
    shards. The arguments and errors are those of `arrange`.
    """
    trained = replace(problem, direction=Direction.BACKWARD, softmax_scale=None, deterministic=False)
    sizes = tuple((name, tuple(axes.items())) for name, axes in wanted.items())

    def make() -> Arrangement:
        about = wanted, kernel, placement, one_host
        try:
            return arrange(registry, trained, *about)
        except UnsupportedError:
            return arrange(registry, trained.in_direction(Direction.FORWARD), *about)

    return _ARRANGED.get(problem.mask, (registry, trained.settings, sizes, kernel, placement, one_host), make)


#: The latest choices.
_ARRANGED: PlanCache[Arrangement] = PlanCache(64)


def arrange(
    registry: Registry,
    problem: Problem,
    wanted: Mapping[str, Mapping[str, int]],
    kernel: str,
    placement: str,
    one_host: bool,
) -> Arrangement:
    """The strategy and placement to take for a problem.

    Args:
        registry: The registry of strategies and kernels to choose from.
        problem: The problem of all ranks together.
        wanted: The strategies to choose from, each with the ranks along its axes.
        kernel: Name of the kernel or pair, or `auto` to choose it too.
        placement: Name of the placement, or `auto` to choose it too.
        one_host: Whether all ranks are on one host. If not, strategies are not compared.

    Raises:
        UnsupportedError: Nothing is valid. The message gives the reasons for each strategy.
        UnknownNameError: Nobody provides the kernel, or no strategy has the placement.
        RequestError: The evidence cannot be read.
    """
    wanted = {name: sizes for name, sizes in wanted.items() if placement in (AUTO, *registry.strategy(name).placements)}
    if not wanted:
        raise UnknownNameError("placement", placement, placements_of(registry))
    if one_host or len(wanted) == 1:
        named = () if placement == AUTO else (placement,)
        layouts = [one for name, sizes in wanted.items() for one in laid_out(registry, name, problem, sizes, named)]
        if found := _predicted(registry, problem, layouts, kernel):
            return Arrangement(found[0].costs.strategy, found[0].costs.placement, _chosen(found))
    return _in_order(registry, problem, wanted, kernel, placement, one_host)


def choose_kernel(registry: Registry, problem: Problem, layout: Layout) -> Choice:
    """The kernel or the pair to compute a layout's steps with.

    Args:
        registry: The registry of kernels to choose from.
        problem: The problem of all ranks together.
        layout: The layout, which assigns steps to ranks.

    Raises:
        UnsupportedError: No kernel takes every step. The message gives the reasons for each kernel.
        RequestError: The evidence cannot be read.
    """
    if layout.strategy is not None and (found := _predicted(registry, problem, [layout], AUTO)):
        return _chosen(found)
    return choose(problem, registry, {name: registry.resolve(name, problem, layout) for name in registry.kernels})


def _predicted(registry: Registry, problem: Problem, layouts: Sequence[Layout], kernel: str) -> list[StrategyCandidate]:
    """The predictions by the evidence of the device, or else of the most similar GPU that has any. May be empty."""
    if kernel != AUTO:
        registry.manifests(kernel)  # an unknown one is refused as such
    named, capacity = None if kernel == AUTO else kernel, capacity_of(problem)
    each = (predicted(registry, problem, layouts, named, capacity, gpu) for gpu in similar_gpus(problem.device))
    return next(filter(None, each), [])


def _chosen(found: Sequence[StrategyCandidate]) -> Choice:
    """The quickest prediction as a choice with its reason."""
    best, *others = found
    after = "Nothing else was about as quick"
    if others:
        after = f"Next is {others[0].title}: {interval(others[0].seconds, *others[0].interval)}"
    sentences = [after]
    sentences += [] if best.fits else ["No choice fits into the memory"]
    sentences += filter(None, [best.costs.request.from_similar_gpu])
    return explained(best, subject(best.costs.request.problem, best.title), sentences, best.fits)


def _in_order(
    registry: Registry,
    problem: Problem,
    wanted: Mapping[str, Mapping[str, int]],
    kernel: str,
    placement: str,
    one_host: bool,
) -> Arrangement:
    """The first valid strategy in the stated order."""
    refusals: dict[str, UnsupportedError] = {}
    for name in sorted(wanted, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST)):
        try:
            taken, found = _nominal(registry, problem, name, wanted[name], kernel, placement)
        except UnsupportedError as error:
            refusals[name] = error
            continue
        about = subject(problem, f"{taken} with {name} ({mesh_text(wanted[name])}, {found})")
        reason = _unranked(problem, len(wanted), one_host)
        return Arrangement(name, found, Choice(taken, about, reason, wrong=sources().notes))
    if len(refusals) == 1:
        raise next(iter(refusals.values()))
    raise UnsupportedError(" ".join(f"{name}: {error}" for name, error in refusals.items()))


def _unranked(problem: Problem, strategies: int, one_host: bool) -> str:
    """Why something was taken that is not ranked by evidence."""
    lacking = f"no measurement on {evidence_name(problem.device)} says how fast the valid choices are"
    if strategies == 1:
        return f"the least nominal cost. It is not ranked by evidence: {lacking}; `longca run` measures them"
    if one_host:
        return f"the first valid strategy. It is not ranked by evidence: {lacking}; `longca run` measures them"
    return (
        "the first valid strategy. It is not ranked by evidence: the ranks are of several hosts, and nothing says how "
        "these are linked; `longca recommend --network` ranks strategies for a network"
    )


def _nominal(
    registry: Registry, problem: Problem, strategy: str, sizes: Mapping[str, int], kernel: str, placement: str
) -> tuple[str, str]:
    """A kernel and a placement of a strategy, without comparing strategies."""
    if kernel == AUTO:
        verdicts = {name: _anywhere(registry, name, problem, strategy, sizes) for name in registry.kernels}
        kernel = choose(problem, registry, verdicts).kernel
    if placement == AUTO:
        return kernel, place(registry, strategy, kernel, problem, sizes)[0]
    registry.resolve(kernel, problem, registry.layout(strategy, problem, sizes, placement)).check()
    return kernel, placement


def _anywhere(registry: Registry, kernel: str, problem: Problem, strategy: str, sizes: Mapping[str, int]) -> Verdict:
    """Whether a kernel takes a problem under any placement of a strategy."""
    refused = []
    for placement in registry.strategy(strategy).placements:
        try:
            verdict = registry.resolve(kernel, problem, registry.layout(strategy, problem, sizes, placement))
        except UnsupportedError as error:
            verdict = Verdict(kernel, None, (Reason("layout", f"{placement} was tried", str(error).rstrip(".")),))
        if verdict:
            return verdict
        refused.append(verdict)
    return refused[0]


def placements_of(registry: Registry) -> list[str]:
    """The placements of all strategies."""
    return sorted({name for manifest in registry.strategies.values() for name in manifest.placements})
