"""The registry: every plugin with its kernels, strategies and errors, and verdicts on kernels and problems."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from functools import cache, partial
from importlib import import_module
from math import prod
from typing import Any, Literal

import numpy as np

from longca.discovery import PluginInfo, describe, load_plugins
from longca.errors import (
    LongCAError,
    MissingPackageError,
    PluginError,
    RequestError,
    UnknownNameError,
    UnsupportedError,
)
from longca.manifests import (
    KernelManifest,
    Layout,
    Manifest,
    Offer,
    Problem,
    StrategyManifest,
    Transport,
    Verdict,
    missing,
)
from longca.manifests.installs import install_line
from longca.manifests.pairs import HALVES, asked_of_halves, join, pair_verdict, split
from longca.manifests.resolve import resolve_manifest, stack_offers
from longca.manifests.schedule import Phase
from longca.manifests.step_cuts import StepStack, distinct_steps
from longca.manifests.strategy import StrategyMemory
from longca.plan_cache import PlanCache

__all__ = ["Asked", "PluginInfo", "Registry", "registry", "resolve"]

#: A kernel or a pair of kernels: its name, or its manifest or manifests, which need not be registered.
Asked = str | KernelManifest | tuple[KernelManifest, ...]


class BrokenFunctionError(PluginError, UnsupportedError):
    """A function that a manifest names raises or returns something else. The request is refused."""


class Registry:
    """Everything that plugins provide. `registry()` returns it.

    Its methods take kernels, pairs and strategies by name. They raise UnknownNameError for a name that nobody provides,
    and RequestError for what is no name of a kernel or of a pair.

    Attributes:
        plugins: All plugins: the core first, then by distribution name.
        kernels: Kernels by name, in the plugins' order and within a plugin in its own.
        strategies: Context-parallel strategies by name, in the same order.
    """

    def __init__(self, disabled: frozenset[str] = frozenset()) -> None:
        self.kernels: dict[str, KernelManifest] = {}
        self.strategies: dict[str, StrategyManifest] = {}
        self._owners: dict[tuple[type[Manifest], str], PluginInfo] = {}
        self._loaded: dict[str, Any] = {}
        found = load_plugins(disabled)
        for plugin, manifests in found:
            for manifest in manifests:
                self._enter(plugin, manifest)
        self.plugins = tuple(plugin for plugin, _ in found)

    def extended(self, known: Iterable[tuple[PluginInfo, Iterable[Manifest]]]) -> Registry:
        """A copy that also has the manifests of plugins that are not installed. Names that are taken stay as they are.

        Kernels are in the order that they have where all plugins are installed.
        """
        made = copy(self)
        made.kernels, made.strategies, made._owners = dict(self.kernels), dict(self.strategies), dict(self._owners)
        for plugin, manifests in known:
            made.plugins = (*made.plugins, plugin)
            for manifest in manifests:
                made._enter(plugin, manifest)
        made.kernels = dict(sorted(made.kernels.items(), key=lambda item: made.provider(item[0]).order))
        return made

    def _enter(self, plugin: PluginInfo, manifest: Manifest) -> None:
        """Enters a manifest if its name is free. Else this is a problem of its plugin."""
        kind = "kernel" if isinstance(manifest, KernelManifest) else "strategy"
        if taken := self._owners.get((type(manifest), manifest.name)):
            said = f"{kind} {manifest.name!r} of {plugin.distribution} is left out"
            plugin.problems.append(f"{said}: {taken.distribution} provides one of that name")
            return
        self._owners[type(manifest), manifest.name] = plugin
        if isinstance(manifest, KernelManifest):
            self.kernels[manifest.name] = manifest
            plugin.kernels.append(manifest.name)
        elif isinstance(manifest, StrategyManifest):
            self.strategies[manifest.name] = manifest
            plugin.strategies.append(manifest.name)

    def manifest(self, kernel: str) -> KernelManifest:
        """A kernel's manifest. A pair has two (`manifests`)."""
        if (pair := split(kernel)) is not None:
            raise RequestError(f"{kernel!r} is a pair of kernels, each with a manifest; name {' or '.join(pair)}")
        if kernel not in self.kernels:
            raise UnknownNameError("kernel", kernel, self.kernels)
        return self.kernels[kernel]

    def manifests(self, kernel: Asked) -> tuple[KernelManifest, ...]:
        """A kernel's manifest, or the manifests of a pair such as `fa3+fa4`, the forward kernel's first."""
        if not isinstance(kernel, str):
            return (kernel,) if isinstance(kernel, KernelManifest) else kernel
        pair = split(kernel)
        if pair is None:
            return (self.manifest(kernel),)
        for half, name in zip(HALVES, pair, strict=True):
            if name not in self.kernels:
                raise UnknownNameError(half, name, self.kernels)
        return tuple(self.kernels[name] for name in pair)

    def strategy(self, name: str) -> StrategyManifest:
        """A context-parallel strategy's manifest."""
        if name not in self.strategies:
            raise UnknownNameError("strategy", name, self.strategies)
        return self.strategies[name]

    def provider(self, kernel: str) -> PluginInfo:
        """The plugin that provides a kernel. A pair may have two (`providers`)."""
        return self._owners[KernelManifest, self.manifest(kernel).name]

    def providers(self, kernel: str) -> tuple[PluginInfo, ...]:
        """The plugins that provide a kernel, or the kernels of a pair, each once."""
        return tuple(dict.fromkeys(self.provider(manifest.name) for manifest in self.manifests(kernel)))

    def strategy_provider(self, name: str) -> PluginInfo:
        """The plugin that provides a context-parallel strategy."""
        return self._owners[StrategyManifest, self.strategy(name).name]

    def resolve(
        self, kernel: Asked, problem: Problem, layout: Layout | None = None, *, anywhere: bool = False
    ) -> Verdict:
        """Whether a kernel takes a problem, alone or in every step of a layout. Its plugin may veto.

        Args:
            kernel: A kernel's or a pair's name. A manifest or two, which need not be registered, are accepted too.
            problem: The problem.
            layout: Under context parallelism, the queries, keys and heads of every step.
            anywhere: Whether to answer for a machine that has every package.
        """
        manifests = self.manifests(kernel)
        if len(manifests) == 1:
            return self._resolve(manifests[0], problem, layout, anywhere)
        # A pair is valid if each half takes its own problem.
        halves = zip(manifests, asked_of_halves(problem), strict=False)
        verdicts = [self._resolve(manifest, half, layout, anywhere) for manifest, half in halves]
        return pair_verdict(join(manifests[0].name, manifests[-1].name), verdicts)

    def _resolve(self, manifest: KernelManifest, problem: Problem, layout: Layout | None, anywhere: bool) -> Verdict:
        verdict = resolve_manifest(manifest, problem, layout, anywhere=anywhere)
        if not verdict.valid or self.kernels.get(manifest.name) is not manifest:
            return verdict
        plugin = self.provider(manifest.name)
        if plugin.can_veto:
            parts: Iterable[Problem] = (problem,) if layout is None else distinct_steps(problem, layout)
            if reasons := plugin.veto(manifest.name, parts):
                return Verdict(manifest.name, None, reasons)
        return verdict

    def offers(self, kernel: str, problem: Problem, stack: StepStack, *, anywhere: bool = False) -> list[Offer | None]:
        """The offer by which a kernel takes each step of a stack of the problem's steps. None where it takes none."""
        manifest, plugin = self.manifest(kernel), self.provider(kernel)
        found = stack_offers(manifest, problem, stack, anywhere=anywhere)
        for at in np.flatnonzero(found >= 0).tolist() if plugin.can_veto else ():
            if plugin.veto(kernel, [stack.problem(problem, at)]):
                found[at] = -1
        return [None if index < 0 else manifest.offers[index] for index in found.tolist()]

    def call(self, manifest: Manifest, field: str, *arguments: Any) -> Any:
        """The result of a torch-free function that a field of a registered manifest names, such as `memory`.

        Raises:
            MissingPackageError: A package that the manifest requires is not installed.
            PluginError: The function cannot be imported, raises, or returns something else. Unless
                the import failed, it is an UnsupportedError too, because the request is refused.
        """
        return call_function(manifest, field, arguments, self._owners[type(manifest), manifest.name].distribution)

    def load(self, kernel: str) -> Any:
        """The one instance of a kernel's implementation, made at first use.

        The backward kernel of a pair is made when a backward is planned.

        Raises:
            MissingPackageError: A package it requires is not installed.
            PluginError: Its implementation cannot be imported or called.
        """
        if kernel not in self._loaded:
            manifest, *paired = self.manifests(kernel)
            if paired:
                pair = import_module("longca.kernels.pair").Pair
                made = pair(self.load(manifest.name), partial(self.load, paired[0].name))
            else:
                made = instantiate(manifest, self.provider(kernel).distribution)
            self._loaded.setdefault(kernel, made)  # another thread may have been first
        return self._loaded[kernel]

    def load_strategy(self, name: str) -> Any:
        """A strategy's class. An instance needs a mesh. It raises as `load` does."""
        manifest = self.strategy(name)
        return load_object(manifest, manifest.implementation, self.strategy_provider(name).distribution)

    def stated(
        self,
        strategy: str,
        field: Literal["memory", "schedule"],
        problem: Problem,
        where: Mapping[str, int] | Layout,
        nccl: bool,
        transport: Transport = Transport.AUTO,
    ) -> Any:
        """The memory or the schedule that a strategy's manifest states for a problem, or None if it states none.

        Args:
            strategy: The strategy's name.
            field: The manifest's field.
            problem: The problem of all ranks together.
            where: Ranks along each of the strategy's axes, or for a schedule the layout.
            nccl: Whether NCCL moves the tensors of collectives.
            transport: The way to move tensors. Only the functions of a manifest with several transports get it.

        Raises:
            PluginError: As in `call`.
        """
        manifest = self.strategy(strategy)
        several = (transport,) if len(manifest.transports) > 1 else ()
        return None if getattr(manifest, field) is None else self.call(manifest, field, problem, where, nccl, *several)

    def layout(
        self, strategy: str, problem: Problem, axis_sizes: Mapping[str, int], placement: str | None = None
    ) -> Layout:
        """A strategy's layout of a problem, the same for both of its directions. It needs neither torch nor devices.

        The latest layouts are cached.

        Args:
            strategy: The strategy's name.
            problem: The problem.
            axis_sizes: Ranks along each of the strategy's axes.
            placement: Name of the placement. None for the strategy's default.

        Raises:
            RequestError: Sizes for other axes than the strategy's, or below 1, or an unknown placement.
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
        about = problem.heads_q, problem.heads_kv, problem.dims, problem.dtype, problem.device
        shared = tuple((mask.key, weight) for mask, weight in getattr(chosen, "weighed", ()))  # of a SharedPlacement
        key = self, strategy, tuple(axis_sizes.items()), chosen, shared, about
        return _LAYOUTS.get(problem.mask, key, lambda: self._lay_out(manifest, problem, axis_sizes, chosen))

    def _lay_out(
        self, manifest: StrategyManifest, problem: Problem, axis_sizes: Mapping[str, int], placement: str
    ) -> Layout:
        layout: Layout = self.call(manifest, "layout", problem, axis_sizes, placement)
        if layout.world_size != (ranks := prod(axis_sizes.values())):
            of = f"{layout.world_size} ranks for a mesh of {ranks}"
            owner = self.strategy_provider(manifest.name).distribution
            raise BrokenFunctionError(f"{manifest.layout} of plugin {owner} returned a layout of {of}")
        return layout.made_by(manifest.name, tuple((axis, axis_sizes[axis]) for axis in manifest.axes), str(placement))


#: The latest layouts, which serve all kernels and both directions of a problem.
_LAYOUTS: PlanCache[Layout] = PlanCache()


def registry(disabled: frozenset[str] = frozenset()) -> Registry:
    """The registry of this process, made at the first call.

    Args:
        disabled: Entry points or distributions to leave out. The variable LONGCA_PLUGINS names the plugins to take.

    Raises:
        RequestError: A name belongs to no plugin, or to the core.
    """
    return _open(disabled)


@cache
def _open(disabled: frozenset[str]) -> Registry:
    return Registry(disabled)


def load_object(manifest: Manifest, import_string: str, distribution: str) -> Any:
    """The object that an import string of a manifest names.

    Raises:
        MissingPackageError: The import fails, and a package that the manifest requires is not installed.
        PluginError: The import fails for any other reason.
    """
    module, _, name = import_string.partition(":")
    try:
        return getattr(import_module(module), name)
    except (Exception, SystemExit) as error:  # a library may call exit() if there is no GPU
        raise _explain(manifest, import_string, distribution, error) from error


def instantiate(manifest: Manifest, distribution: str) -> Any:
    """A new instance of a manifest's implementation. It raises as `load_object` does."""
    kind = load_object(manifest, manifest.implementation, distribution)
    try:
        return kind()
    except LongCAError:
        raise
    except (Exception, SystemExit) as error:
        raise _explain(manifest, manifest.implementation, distribution, error) from error


def call_function(manifest: Manifest, field: str, arguments: tuple[Any, ...], distribution: str) -> Any:
    """The result of a torch-free function that a field of a manifest names: layout, memory, schedule, workspace or
    plan_bytes.

    Raises:
        LongCAError: The function raises it.
        BrokenFunctionError: The function raises anything else, or returns something else.
    """
    name = f"{getattr(manifest, field)} of plugin {distribution}"
    function = load_object(manifest, getattr(manifest, field), distribution)
    try:
        value = function(*arguments)
    except LongCAError:
        raise
    except (Exception, SystemExit) as error:
        raise BrokenFunctionError(f"{name} raised {describe(error)}") from error
    kinds = {"layout": Layout, "memory": StrategyMemory, "schedule": tuple}
    fits = isinstance(value, kinds.get(field, (int, np.integer, float)))
    if not fits or (field == "schedule" and not all(isinstance(phase, Phase) for phase in value)):
        raise BrokenFunctionError(f"{name} returned a {type(value).__name__}")
    return value if field in kinds else int(value)


def _explain(manifest: Manifest, import_string: str, distribution: str, error: BaseException) -> LongCAError:
    if isinstance(error, ImportError):
        for requirement in manifest.requires:
            if missing(requirement):
                stated = manifest.install or f"pip install '{requirement}'"
                return MissingPackageError(requirement, manifest.name, install_line(stated))
    return PluginError(
        f"{manifest.name} of plugin {distribution} cannot be loaded: {import_string} raised {describe(error)}"
    )


def resolve(kernel: Asked, problem: Problem, layout: Layout | None = None) -> Verdict:
    """Whether a kernel or a pair takes a problem. See `Registry.resolve`."""
    return registry().resolve(kernel, problem, layout)
