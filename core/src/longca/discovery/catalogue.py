"""The catalogue: every plugin that was found, probed and admitted, with the kernels and strategies of each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from longca.discovery.admission import Admission, HookError, admit
from longca.discovery.candidates import Candidate, find_plugins, why_off
from longca.discovery.guarded import Guarded
from longca.discovery.hook_host import INSIDE
from longca.discovery.probe_cache import Answer
from longca.discovery.probing import probe_all
from longca.errors import PluginError
from longca.manifests import KernelManifest, Manifest, StrategyManifest

__all__ = ["Catalogue", "PluginInfo", "collect"]

_Any = TypeVar("_Any", bound=Manifest)
_SLOW = "it imports torch when it is listed; move that import into the kernel"


@dataclass(frozen=True)
class PluginInfo:
    """One entry point of the group `longca`.

    Attributes:
        name: The entry point's name. Two distributions may use the same one.
        distribution: The distribution's name.
        version: The distribution's version.
        module: The module that is imported.
        kernels: Names of its kernels.
        strategies: Names of its strategies.
        off: The reason why it is switched off. Empty if it is on.
        problems: Its problems. A manifest with a problem is left out.
        warnings: Its warnings. They leave nothing out.
    """

    name: str
    distribution: str
    version: str
    module: str
    kernels: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    off: str = ""
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def active(self) -> bool:
        """Whether it provides at least one kernel or strategy."""
        return bool(self.kernels or self.strategies)


@dataclass
class Catalogue:
    """All plugins and their manifests. The core is first, then plugins by distribution name."""

    plugins: list[PluginInfo] = field(default_factory=list)
    kernels: dict[str, KernelManifest] = field(default_factory=dict)
    strategies: dict[str, StrategyManifest] = field(default_factory=dict)
    _owners: dict[tuple[str, str], tuple[PluginInfo, Admission]] = field(default_factory=dict)
    _admissions: list[Admission] = field(default_factory=list)

    def owner(self, manifest: Manifest) -> PluginInfo:
        """The plugin that provides a manifest of this catalogue."""
        return self._owners[_kind(manifest), manifest.name][0]

    def admission(self, manifest: Manifest) -> Admission:
        """The admission of the plugin that provides a manifest: its manifests and hooks."""
        return self._owners[_kind(manifest), manifest.name][1]

    def take(self, candidate: Candidate, admission: Admission, off: str = "", imports_torch: bool = False) -> None:
        """Enters a plugin with its manifests.

        Args:
            candidate: The plugin.
            admission: Its manifests, hooks and problems.
            off: The reason why it is switched off, or an empty text.
            imports_torch: Whether its import imports torch.
        """
        problems = list(admission.problems)
        kernels = self._unclaimed(admission.kernels, candidate, problems)
        strategies = self._unclaimed(admission.strategies, candidate, problems)
        info = PluginInfo(
            candidate.name,
            candidate.distribution,
            candidate.version,
            candidate.module,
            kernels=tuple(kernels),
            strategies=tuple(strategies),
            off=off,
            problems=tuple(problems),
            warnings=(_SLOW,) if imports_torch else (),
        )
        self.plugins.append(info)
        self._admissions.append(admission)
        self.kernels |= kernels
        self.strategies |= strategies
        self._owners |= {(_kind(m), m.name): (info, admission) for m in (*kernels.values(), *strategies.values())}

    def examine(self) -> Iterator[PluginInfo]:
        """The plugins, with the problems that a second import and questions to their hooks show."""
        guarded = {index: found for index, found in enumerate(self._admissions) if isinstance(found, Guarded)}
        for found in guarded.values():
            with suppress(HookError):  # `examine` says it
                found.start()
        for index, plugin in enumerate(self.plugins):
            if index not in guarded:
                yield plugin
                continue
            problems, warnings = guarded[index].examine()
            if guarded[index].broken:
                plugin = replace(plugin, kernels=(), strategies=())
            yield replace(plugin, problems=(*plugin.problems, *problems), warnings=(*plugin.warnings, *warnings))

    def broken(self) -> Iterator[tuple[str, str]]:
        """The distributions of plugins that are not asked again, each with the reason as a clause."""
        for each in self._admissions:
            if isinstance(each, Guarded) and each.broken:
                yield each.distribution, each.broken

    def _unclaimed(self, manifests: list[_Any], candidate: Candidate, problems: list[str]) -> dict[str, _Any]:
        """The manifests whose names are free. The others are described in `problems`."""
        free = {}
        for manifest in manifests:
            kind = _kind(manifest)
            if taken := self._owners.get((kind, manifest.name)):
                mine, theirs = candidate.distribution, taken[0].distribution
                problems.append(f"{kind} {manifest.name!r} of {mine} is left out: {theirs} provides one of that name")
            else:
                free[manifest.name] = manifest
        return free


def _kind(manifest: Manifest) -> str:
    return "kernel" if isinstance(manifest, KernelManifest) else "strategy"


def collect(disabled: frozenset[str] = frozenset(), reprobe: bool = False, guarded: bool = False) -> Catalogue:
    """Finds, probes and admits all plugins that are on.

    Args:
        disabled: Names of entry points or distributions to leave out.
        reprobe: Whether to probe plugins again whose answers are cached.
        guarded: Whether plugins stay out of this process, except the core's own.

    Raises:
        UnknownNameError: No plugin has one of the names.
        RequestError: The core was to be switched off.
        PluginError: A plugin asks for the registry while it is imported.
    """
    if INSIDE in os.environ:
        raise PluginError("a plugin asks for longca's registry while it is imported; it must not")
    candidates = find_plugins()
    off = why_off(candidates, disabled)
    answers = probe_all([c for c in candidates if not (off[c] or c.is_core or c.fault)], reprobe)
    catalogue = Catalogue()
    for candidate in candidates:
        answer = answers.get(candidate, Answer(problem=candidate.fault))
        admission = Admission("") if off[candidate] else _admission(candidate, answer, guarded)
        catalogue.take(candidate, admission, off[candidate], answer.imports_torch)
    return catalogue


def _admission(candidate: Candidate, answer: Answer, guarded: bool) -> Admission:
    if answer.problem:
        return Admission(candidate.distribution, [answer.problem])
    return Guarded(candidate, answer) if guarded and not candidate.is_core else admit(candidate)
