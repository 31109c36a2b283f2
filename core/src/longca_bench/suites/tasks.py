"""Tasks: a case that a kernel takes on a device, with its placement. This needs no torch, so a dry run does it too."""

from __future__ import annotations

from dataclasses import dataclass

from longca.manifests import Device
from longca.plugins import Registry
from longca_advice.auto_layout import AUTO, arranged
from longca_bench.suites.cases import Case

__all__ = ["Task", "task_of"]


@dataclass(frozen=True)
class Task:
    """A case that can be measured.

    Attributes:
        case: The case.
        form: The form of the offers that cover it.
        placed: The placement of its tokens. `auto` is resolved. None on one device.
        rough_lse: Whether an offer that covers it calls its log-sum-exp rough.
        distributions: The distributions whose code it runs. They share a process.
    """

    case: Case
    form: str
    placed: str | None = None
    rough_lse: bool = False
    distributions: tuple[str, ...] = ()


def task_of(registry: Registry, case: Case, device: Device) -> Task:
    """The task of a case.

    `auto` gives the same placement in both directions, because training and evaluation use the same shards.

    Args:
        registry: The registry of kernels and strategies.
        case: The case.
        device: The device of each rank.

    Raises:
        UnsupportedError: The kernel does not take the case. The message gives the reasons.
    """
    problem, parallel = case.problem(device), case.parallel
    if parallel is None:
        verdict = registry.resolve(case.kernel, problem).check()
        providers = tuple(provider.distribution for provider in registry.providers(case.kernel))
        return Task(case, verdict.form, rough_lse=verdict.rough_lse, distributions=providers)
    sizes, placement = parallel.axis_sizes, parallel.placement
    if placement == AUTO:
        placement = arranged(registry, problem, {parallel.strategy: sizes}, case.kernel).placement
    layout = registry.layout(parallel.strategy, problem, sizes, placement)
    return Task(case, registry.resolve(case.kernel, problem, layout).check().form, placement)
