"""The registry: every plugin, what it provides and what is wrong with it; and whether a kernel takes a problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

from longca.discovery.admission import veto
from longca.discovery.catalogue import PluginInfo, collect
from longca.discovery.loading import instantiate, load_object
from longca.errors import PluginError, RequestError, UnknownNameError, UnsupportedError
from longca.manifests import KernelManifest, Layout, Problem, StrategyManifest, Verdict
from longca.manifests.cost import predicted_cost
from longca.manifests.resolve import resolve_manifest, step_problems

__all__ = ["PluginInfo", "Registry", "registry", "resolve"]


class Registry:
    """Everything that plugins provide. Ask `registry()` for it.

    Attributes:
        disabled: Entry points and distributions that it leaves out.
        plugins: All plugins: the core first, then by distribution name.
        kernels: Kernels by name, in the plugins' order and within a plugin in its own.
        strategies: Context-parallel strategies by name, in the same order.
    """

    def __init__(self, disabled: frozenset[str] = frozenset(), reprobe: bool = False) -> None:
        self._catalogue = collect(disabled, reprobe)
        self.disabled = disabled
        self.plugins = tuple(self._catalogue.plugins)
        self.kernels: dict[str, KernelManifest] = self._catalogue.kernels
        self.strategies: dict[str, StrategyManifest] = self._catalogue.strategies
        self._loaded: dict[str, Any] = {}

    def manifest(self, kernel: str) -> KernelManifest:
        """A kernel's manifest.

        Raises:
            UnknownNameError: Nobody provides it.
        """
        if kernel not in self.kernels:
            raise UnknownNameError("kernel", kernel, self.kernels)
        return self.kernels[kernel]

    def strategy(self, name: str) -> StrategyManifest:
        """A context-parallel strategy's manifest.

        Raises:
            UnknownNameError: Nobody provides it.
        """
        if name not in self.strategies:
            raise UnknownNameError("strategy", name, self.strategies)
        return self.strategies[name]

    def provider(self, kernel: str) -> PluginInfo:
        """The plugin that provides a kernel.

        Raises:
            UnknownNameError: Nobody does.
        """
        return self._catalogue.owner(self.manifest(kernel))

    def resolve(self, kernel: str | KernelManifest, problem: Problem, layout: Layout | None = None) -> Verdict:
        """Whether a kernel takes a problem, alone or in every step of a layout: its manifest, then its plugin's veto.

        Args:
            kernel: A kernel's name; or a manifest, which need not be registered.
            problem: What is asked.
            layout: Which queries, keys and heads meet where, under context parallelism.

        Raises:
            UnknownNameError: Nobody provides the kernel.
        """
        manifest = self.manifest(kernel) if isinstance(kernel, str) else kernel
        verdict = resolve_manifest(manifest, problem, layout)
        if not verdict.valid or self.kernels.get(manifest.name) is not manifest:
            return verdict
        admission = self._catalogue.admission(manifest)
        steps = ((problem,),) if layout is None else step_problems(problem, layout)
        for part in (step for rank in steps for step in rank if step is not None):
            if reasons := veto(admission, manifest.name, part):
                return Verdict(manifest.name, None, reasons)
        return verdict

    def load(self, kernel: str) -> Any:
        """The one instance of a kernel's implementation, made at first use.

        Raises:
            UnknownNameError: Nobody provides it.
            MissingPackageError: A package it requires is not installed.
            PluginError: Its implementation cannot be imported or called.
        """
        if kernel not in self._loaded:
            self._loaded[kernel] = instantiate(self.manifest(kernel), self.provider(kernel).distribution)
        return self._loaded[kernel]

    def load_strategy(self, name: str) -> Any:
        """A strategy's implementation: the class itself, which needs a mesh to be instantiated.

        Raises:
            UnknownNameError: Nobody provides it.
            MissingPackageError: A package it requires is not installed.
            PluginError: It cannot be imported.
        """
        manifest = self.strategy(name)
        return load_object(manifest, manifest.implementation, self._catalogue.owner(manifest).distribution)

    def layout(
        self, strategy: str, problem: Problem, axis_sizes: Mapping[str, int], placement: str | None = None
    ) -> Layout:
        """How a strategy lays a problem out; needs neither torch nor devices.

        Args:
            strategy: The strategy's name.
            problem: What is asked.
            axis_sizes: Ranks along each of the strategy's axes.
            placement: How it places token ranges on ranks; None for its default.

        Raises:
            UnknownNameError: Unknown strategy or placement.
            RequestError: Sizes for other axes than the strategy's, or below 1.
            UnsupportedError: The strategy has no layout for this.
            PluginError: Its layout function cannot be imported, or returns something else.
        """
        manifest = self.strategy(strategy)
        if set(axis_sizes) != set(manifest.axes) or min(axis_sizes.values()) < 1:
            needed = f"it needs a size of at least 1 for each of {', '.join(manifest.axes)}"
            raise RequestError(f"{strategy} was given axes {dict(axis_sizes)}; {needed}")
        chosen = placement or manifest.placements[0]
        if chosen not in manifest.placements:
            raise UnknownNameError(f"placement of {strategy}", chosen, manifest.placements)
        distribution = self._catalogue.owner(manifest).distribution
        layout = load_object(manifest, manifest.layout, distribution)(problem, axis_sizes, chosen)
        if not isinstance(layout, Layout):
            raise PluginError(f"{manifest.layout} of plugin {distribution} returned a {type(layout).__name__}")
        if layout.world_size != (ranks := prod(axis_sizes.values())):
            of = f"{layout.world_size} ranks for a mesh of {ranks}"
            raise PluginError(f"{manifest.layout} of plugin {distribution} returned a layout of {of}")
        return replace(layout, strategy=strategy, axis_sizes=tuple((axis, axis_sizes[axis]) for axis in manifest.axes))

    def place(
        self, strategy: str, kernel: str | KernelManifest, problem: Problem, axis_sizes: Mapping[str, int]
    ) -> tuple[str, Layout]:
        """The placement of a strategy that is likely to be quickest with a kernel; what `placement="auto"` takes.

        Of the placements with which the kernel takes every step, it is the one with the least predicted cost
        (`longca.manifests.cost`), and of equals the first in the strategy's manifest.

        Args:
            strategy: The strategy's name.
            kernel: A kernel's name; or a manifest, which need not be registered.
            problem: What is asked.
            axis_sizes: Ranks along each of the strategy's axes.

        Returns:
            The placement's name, and its layout.

        Raises:
            UnknownNameError: Unknown strategy or kernel.
            RequestError: Sizes for other axes than the strategy's, or below 1.
            UnsupportedError: There is no placement with which the kernel takes every step; with the reasons of each.
            PluginError: The layout function cannot be imported, or returns something else.
        """
        manifest = self.manifest(kernel) if isinstance(kernel, str) else kernel
        fitting: dict[Layout, str] = {}
        refusals: dict[str, list[str]] = {}
        for placement in self.strategy(strategy).placements:
            try:
                layout = self.layout(strategy, problem, axis_sizes, placement)
                self.resolve(manifest, problem, layout).check()
            except UnsupportedError as error:
                refusals.setdefault(str(error), []).append(placement)
            else:
                fitting.setdefault(layout, placement)
        if not fitting:
            reasons = " ".join(f"{', '.join(placements)}: {reason}" for reason, placements in refusals.items())
            raise UnsupportedError(f"no placement of {strategy} does for {manifest.name}. {reasons}")
        best = min(fitting, key=lambda layout: predicted_cost(manifest, problem, layout))
        return fitting[best], best


def registry(disabled: frozenset[str] = frozenset(), reprobe: bool = False) -> Registry:
    """The registry of this process; plugins are imported when it is first asked for.

    Args:
        disabled: Entry points or distributions to leave out. LONGCA_PLUGINS, where it is set, names those to take.
        reprobe: Whether to probe those plugins too that were probed before.

    Raises:
        RequestError: A name that is nobody's, or the core's.
    """
    return _open(disabled, reprobe)


@cache
def _open(disabled: frozenset[str], reprobe: bool) -> Registry:
    return Registry(disabled, reprobe)


def resolve(kernel: str | KernelManifest, problem: Problem, layout: Layout | None = None) -> Verdict:
    """Whether a kernel takes a problem; see `Registry.resolve`."""
    return registry().resolve(kernel, problem, layout)
