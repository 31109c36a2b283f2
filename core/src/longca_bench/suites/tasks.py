"""Tasks: a case that a kernel takes on a device, with its placement. This needs no torch, so a dry run does it too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Annotated

import numpy as np
from pydantic import AfterValidator

from longca.adviser import AUTO
from longca.errors import LongCAError
from longca.manifests import Device, Layout
from longca.manifests.pairs import singles
from longca.manifests.steps import Steps
from longca.manifests.verified import Standing, standing
from longca.plugins import Registry
from longca_advice.auto_layout import arrange
from longca_bench.suites.case import Case
from longca_bench.suites.meshes import MeshAxes

__all__ = ["Sharing", "Task", "elsewhere", "is_elsewhere", "places_of", "takes", "task_of"]


@dataclass(frozen=True)
class Sharing:
    """How ranks share a case: its layout, and the place of each rank in it.

    `takes_whole` says whether the kernel takes the whole problem on one device, and `rough_alone` whether the offer
    that covers the whole problem calls its log-sum-exp rough.
    """

    layout: Annotated[Layout, AfterValidator(lambda found: replace(found, steps=Steps.of(found.steps)))]
    places: tuple[int, ...]
    takes_whole: bool
    rough_alone: bool


@dataclass(frozen=True)
class Task:
    """A case that can be measured, and what the offers that cover it say.

    `placed` is the placement of its tokens with `auto` resolved, or None on one device. `distributions` are those whose
    code it runs, in one process. `unverified` says that nobody verified an offer on the device, and `optional_lse` that
    the offer may give no log-sum-exp.
    """

    case: Case
    form: str
    placed: str | None = None
    rough_lse: bool = False
    distributions: tuple[str, ...] = ()
    sharing: Sharing | None = None
    unverified: bool = False
    optional_lse: bool = False


def task_of(registry: Registry, case: Case, device: Device) -> Task:
    """The task of a case.

    `auto` gives the same placement in both directions, because training and evaluation use the same shards.
    """
    problem, parallel = case.problem(device), case.parallel
    providers = tuple(provider.distribution for provider in registry.providers(case.kernel))
    if parallel is None:
        verdict = registry.resolve(case.kernel, problem).check()
        found = Task(case, verdict.form, None, verdict.rough_lse, providers, optional_lse=verdict.optional_lse)
        return replace(found, unverified=verdict.unverified)
    sizes, placement = parallel.axis_sizes, parallel.placement
    if placement == AUTO:
        placement = arrange(registry, [(problem, 1.0)], {parallel.strategy: sizes}, case.kernel).placement
    layout = registry.layout(parallel.strategy, problem, sizes, placement)
    verdict = registry.resolve(case.kernel, problem, layout).check()
    alone = registry.resolve(case.kernel, problem)
    sharing = Sharing(layout, places_of(parallel.mesh, layout.axis_sizes), alone.valid, alone.rough_lse)
    both = tuple(dict.fromkeys((*providers, registry.strategy_provider(parallel.strategy).distribution)))
    return Task(case, verdict.form, placement, verdict.rough_lse, both, sharing, verdict.unverified)


def takes(registry: Registry, device: Device, *, allow_unverified: bool = False) -> Callable[[Case], bool]:
    """Whether the kernel or pair of a case takes its problem.

    Several ranks may cut a problem into steps that a kernel takes, so each of their cases is taken here.
    """

    def is_taken(case: Case) -> bool:
        try:
            asked = replace(case, allow_unverified=allow_unverified)
            return case.parallel is not None or registry.resolve(case.kernel, asked.problem(device)).valid
        except LongCAError:  # a mask that cannot be made, as the records of the single kernels say
            return False

    return is_taken


def elsewhere(registry: Registry, device: Device) -> list[str]:
    """The kernels that run on other devices only: none of their offers is for this one."""
    return [
        name
        for name, manifest in registry.kernels.items()
        if all(standing(name, offer, device) is Standing.NOT_OFFERED for offer in manifest.offers)
    ]


def is_elsewhere(registry: Registry, device: Device) -> Callable[[Case], bool]:
    """The function that says whether a case's kernel, or a half of its pair, runs on other devices only."""
    apart = frozenset(elsewhere(registry, device))
    return lambda case: not apart.isdisjoint(singles(case.kernel))


def places_of(mesh: MeshAxes, axes: MeshAxes) -> tuple[int, ...]:
    """Each rank's place in a layout."""
    names, sizes = zip(*mesh, strict=True)
    ranks = np.arange(prod(sizes)).reshape(sizes).transpose([names.index(name) for name, _ in axes])
    return tuple(np.argsort(ranks.ravel()).tolist())
