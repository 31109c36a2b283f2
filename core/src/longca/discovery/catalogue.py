"""The catalogue: every plugin that was found, probed and admitted, with the kernels and strategies of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from longca.discovery.admission import Admission, admit
from longca.discovery.candidates import Candidate, find_plugins, why_off
from longca.discovery.probe_cache import Answer
from longca.discovery.probing import probe_all
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

    def owner(self, manifest: Manifest) -> PluginInfo:
        """The plugin that provides a manifest of this catalogue."""
        return self._owners[_kind(manifest), manifest.name][0]

    def admission(self, manifest: Manifest) -> Admission:
        """The admission of the plugin that provides a manifest: its manifests and hooks."""
        return self._owners[_kind(manifest), manifest.name][1]

    def take(self, candidate: Candidate, off: str, answer: Answer) -> None:
        """Admits a plugin, unless it is off or its probe failed."""
        admission = Admission() if off or answer.problem else admit(candidate)
        problems = [answer.problem] if answer.problem else list(admission.problems)
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
            warnings=(_SLOW,) if answer.imports_torch else (),
        )
        self.plugins.append(info)
        self.kernels |= kernels
        self.strategies |= strategies
        self._owners |= {(_kind(m), m.name): (info, admission) for m in (*kernels.values(), *strategies.values())}

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


def collect(disabled: frozenset[str] = frozenset(), reprobe: bool = False) -> Catalogue:
    """Finds, probes and admits all plugins that are on.

    Args:
        disabled: Names of entry points or distributions to leave out.
        reprobe: Whether to probe plugins again whose answers are cached.

    Raises:
        UnknownNameError: No plugin has one of the names.
        RequestError: The core was to be switched off.
    """
    candidates = find_plugins()
    off = why_off(candidates, disabled)
    answers = probe_all([c for c in candidates if not off[c] and not c.is_core], reprobe)
    catalogue = Catalogue()
    for candidate in candidates:
        catalogue.take(candidate, off[candidate], answers.get(candidate, Answer()))
    return catalogue
