"""Placing a case: which placement it takes, and its layout. Torch-free, for a dry run asks it too."""

from __future__ import annotations

from dataclasses import replace

from longca.bench.cases import Case
from longca.bench.parallel_cases import AUTO
from longca.errors import UnsupportedError
from longca.manifests import Layout, Problem
from longca.plugins import Registry

__all__ = ["placed"]


def placed(registry: Registry, case: Case, problem: Problem) -> tuple[str, Layout]:
    """The placement of a case, and its layout, every step of which the kernel takes.

    `auto` is the same for both directions, as a model is trained and evaluated on the same shards.

    Raises:
        UnsupportedError: There is none; with the reasons.
    """
    parallel = case.parallel
    assert parallel is not None, "a job takes cases with a strategy"
    name, sizes, placement = parallel.strategy, parallel.axis_sizes, parallel.placement
    if placement == AUTO:
        trained = replace(problem, direction="backward")
        try:
            placement, _ = registry.place(name, case.kernel, trained, sizes)
        except UnsupportedError:
            placement, _ = registry.place(name, case.kernel, problem, sizes)
    layout = registry.layout(name, problem, sizes, placement)
    registry.resolve(case.kernel, problem, layout).check()
    return placement, layout
