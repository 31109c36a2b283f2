"""Placing: the placement of a strategy that `placement="auto"` takes for a kernel.

The kernel must take every step of the placement. The placement with the least predicted time wins, for the forward or,
in training, for forward and backward together. All ranks count as ranks of one host, because nothing says how hosts are
linked. The least nominal cost decides (`longca_advice.nominal`) if evidence lacks the kernel on the device, or the
strategy states no schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from longca.errors import UnsupportedError
from longca.manifests import Direction, KernelManifest, Layout, Problem
from longca.manifests.pairs import join
from longca.plugins import Asked as Kernel
from longca.plugins import Registry
from longca_advice.asked import Asked
from longca_advice.capacity import Capacity
from longca_advice.nominal import predicted_cost
from longca_advice.recommend import cost_model, links_here
from longca_advice.sharing import Shared, quickest
from longca_advice.ways import Way

__all__ = ["Laid", "laid_out", "place", "predicted"]


class Laid(NamedTuple):
    """One layout of a strategy.

    Attributes:
        strategy: The strategy's name.
        sizes: Ranks along each of its axes.
        placement: The placement's name.
        layout: The layout.
    """

    strategy: str
    sizes: dict[str, int]
    placement: str
    layout: Layout


def place(
    registry: Registry, strategy: str, kernel: Kernel, problem: Problem, axis_sizes: Mapping[str, int]
) -> tuple[str, Layout]:
    """The placement of a strategy that is predicted to be fastest with a kernel, for `placement="auto"`.

    If several are equal, the first in the strategy's manifest wins.

    Args:
        registry: Knows the strategy and the kernel.
        strategy: The strategy's name.
        kernel: A kernel's or a pair's name. A manifest or two, which need not be registered, are accepted too.
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
    refusals: dict[str, list[str]] = {}
    fitting: dict[Layout, Laid] = {}
    for one in laid_out(registry, strategy, problem, axis_sizes, refusals=refusals):
        try:
            registry.resolve(manifests, problem, one.layout).check()
        except UnsupportedError as error:
            refusals.setdefault(str(error), []).append(one.placement)
        else:
            fitting.setdefault(one.layout, one)
    if not fitting:
        name = join(manifests[0].name, manifests[-1].name)
        reasons = " ".join(f"{', '.join(placements)}: {reason}" for reason, placements in refusals.items())
        raise UnsupportedError(f"no placement of {strategy} does for {name}. {reasons}")
    best = _best(registry, manifests, problem, fitting) if len(fitting) > 1 else next(iter(fitting))
    return fitting[best].placement, best


def laid_out(
    registry: Registry,
    strategy: str,
    problem: Problem,
    axis_sizes: Mapping[str, int],
    placements: Sequence[str] = (),
    refusals: dict[str, list[str]] | None = None,
) -> Iterator[Laid]:
    """The layouts of a strategy.

    Args:
        registry: Knows the strategy.
        strategy: The strategy's name.
        problem: The problem of all ranks together.
        axis_sizes: Ranks along each of the strategy's axes.
        placements: The placements to lay out. Empty for all.
        refusals: Receives the placements that have no layout, by the reason.
    """
    for placement in placements or registry.strategy(strategy).placements:
        try:
            yield Laid(strategy, dict(axis_sizes), placement, registry.layout(strategy, problem, axis_sizes, placement))
        except UnsupportedError as error:
            if refusals is not None:
                refusals.setdefault(str(error), []).append(placement)


def predicted(
    registry: Registry,
    problem: Problem,
    laid: Sequence[Laid],
    kernel: str | None = None,
    capacity: Capacity | None = None,
) -> Shared | None:
    """The layout that is predicted to be fastest, with its kernel, or None without a prediction.

    Args:
        registry: Knows the strategies and the kernels.
        problem: The problem: a forward, or a backward with the forward before it.
        laid: The layouts, on the same ranks.
        kernel: The name of a kernel or of a pair, or None to choose it too.
        capacity: The memory of each rank's device, or None for no limit.

    Raises:
        RequestError: The evidence cannot be read.
    """
    if not laid:
        return None
    training = problem.direction == "backward"
    asked = Asked(problem, training, registry, cost_model()[0], capacity, tuple(registry.kernels), anywhere=False)
    links = links_here(asked.device_name, prod(laid[0].sizes.values()))
    return quickest(asked, [Way(asked, links, *one) for one in laid], kernel)


def _best(
    registry: Registry, manifests: Sequence[KernelManifest], problem: Problem, laid: Mapping[Layout, Laid]
) -> Layout:
    """The layout with the least predicted time, or else with the least nominal cost."""
    if all(registry.kernels.get(manifest.name) is manifest for manifest in manifests):
        found = predicted(registry, problem, list(laid.values()), join(manifests[0].name, manifests[-1].name))
        if found is not None:
            return found.way.layout
    # The nominal cost is of a forward, which a pair's first kernel computes.
    costed = problem if len(manifests) == 1 else replace(problem, direction=Direction.FORWARD)
    return min(laid, key=lambda layout: predicted_cost(manifests[0], costed, layout))
