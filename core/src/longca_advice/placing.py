"""Placing: the placement of a strategy that `placement="auto"` takes for a kernel.

The kernel must take every step of the placement. The placement with the least predicted time wins, for the forward or,
in training, for forward and backward together. All ranks count as ranks of one host, because nothing says how hosts are
linked. The least nominal cost decides (`longca_advice.nominal`) if evidence lacks the kernel on the device, or the
strategy states no schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from longca.errors import UnsupportedError
from longca.manifests import Device, KernelManifest, Layout, Problem
from longca.manifests.pairs import join
from longca.manifests.verdict import paragraph
from longca.plugins import Asked as Kernel
from longca.plugins import Registry
from longca_advice.asked import Asked
from longca_advice.capacity import Capacity
from longca_advice.devices import evidence_name
from longca_advice.meshes import laid_out
from longca_advice.nominal import nominal_cost
from longca_advice.sharing import quickest
from longca_advice.sources import sources
from longca_advice.stand_ins import answered_by
from longca_advice.ways import Way
from longca_advice.weighed import Weighed

__all__ = ["as_ways", "place", "predicted"]


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
) -> list[Weighed]:
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
    ways = as_ways(registry, problem, layouts, capacity, measured)
    return quickest(ways[0].asked, ways, kernel) if ways else []


def as_ways(
    registry: Registry,
    problem: Problem,
    layouts: Sequence[Layout],
    capacity: Capacity | None = None,
    measured: Device | None = None,
) -> list[Way]:
    """The layouts of a problem as ways to share it. The arguments and errors are those of `predicted`."""
    training, known = problem.direction == "backward", sources()
    asked = Asked(problem, training, registry, known.costs, capacity, tuple(registry.kernels), anywhere=False)
    asked = answered_by(asked, measured)
    links = known.links(evidence_name(measured or problem.device), layouts[0].world_size) if layouts else None
    return [Way(asked, links, layout) for layout in layouts if links is not None]


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
        return found[0].way.layout
    return min(layouts, key=lambda layout: nominal_cost(manifests, problem, layout))
