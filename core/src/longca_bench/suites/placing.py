"""Placing a case: which placement it takes, and its layout. Torch-free, for a dry run asks it too."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from longca.errors import UnsupportedError
from longca.manifests import Layout, Problem
from longca.plugins import Registry
from longca_advice.placing import place
from longca_bench.suites.cases import Case
from longca_bench.suites.parallel_cases import AUTO

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
        about = registry, name, case.kernel, tuple(sizes.items()), problem.concrete_mask.key
        placement = _auto(replace(problem, direction="backward"), *about)
    layout = registry.layout(name, problem, sizes, placement)
    registry.resolve(case.kernel, problem, layout).check()
    return placement, layout


@lru_cache(maxsize=64)
def _auto(
    trained: Problem, registry: Registry, strategy: str, kernel: str, sizes: tuple[tuple[str, int], ...], _key: int
) -> str:
    """What `auto` comes to. The key tells apart equal masks of other blocks."""
    try:
        return place(registry, strategy, kernel, trained, dict(sizes))[0]
    except UnsupportedError:
        return place(registry, strategy, kernel, replace(trained, direction="forward"), dict(sizes))[0]
