"""Discovery: installed distributions with an entry point in the group `longca`, imported into this process.

Each plugin is imported, and each of its hooks is called, by itself. A plugin that raises says so in its `problems`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import pluggy
from importlib_metadata import EntryPoint, entry_points
from packaging.utils import canonicalize_name
from pydantic import ValidationError

from longca import hookspecs
from longca.errors import RequestError, UnknownNameError
from longca.manifests import API_VERSION, KernelManifest, Manifest, Problem, Reason, StrategyManifest, Verdict
from longca.plain_text import plain_text

__all__ = ["CORE", "GROUP", "PluginInfo", "describe", "load_plugins"]

CORE, GROUP = "longca-core", "longca"


@dataclass(eq=False)
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
        installed: Whether it is installed. Of other plugins the manifests alone are known.
        problems: Its problems. A manifest with a problem is left out.
        warnings: Its warnings. They leave nothing out.
    """

    name: str
    distribution: str
    version: str
    module: str
    kernels: list[str] = field(default_factory=list)
    strategies: list[str] = field(default_factory=list)
    off: str = ""
    installed: bool = True
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._hooks: pluggy.HookRelay | None = None

    @property
    def active(self) -> bool:
        """Whether it provides at least one kernel or strategy."""
        return bool(self.kernels or self.strategies)

    @property
    def is_core(self) -> bool:
        """Whether this is the core's own plugin."""
        return canonicalize_name(self.distribution) == CORE

    @property
    def order(self) -> tuple[bool, str, str]:
        """The place among plugins: the core first, then by distribution name."""
        return not self.is_core, canonicalize_name(self.distribution), self.name

    @property
    def can_veto(self) -> bool:
        """Whether it implements the hook that can refuse a problem."""
        return self._hooks is not None and bool(self._hooks.supports_mask.get_hookimpls())

    def is_named(self, name: str) -> bool:
        """Whether `name` is the name of the entry point or of the distribution."""
        return name == self.name or canonicalize_name(name) == canonicalize_name(self.distribution)

    def veto(self, kernel: str, problems: Iterable[Problem]) -> tuple[Reason, ...]:
        """The reasons against the first problem that it refuses. A hook that fails is a reason."""
        return next(filter(None, (self._veto(kernel, problem) for problem in problems)), ())

    def _veto(self, kernel: str, problem: Problem) -> tuple[Reason, ...]:
        assert self._hooks is not None, "a plugin without hooks has no kernels"
        try:
            verdict = (self._hooks.supports_mask(kernel=kernel, problem=problem) or [None])[0]
            if verdict is None or isinstance(verdict, Verdict):
                return () if verdict is None else tuple(verdict.reasons)
            said = f"returned an object of type {type(verdict).__name__}, not a Verdict or None"
        except (Exception, SystemExit) as error:
            said = f"raised {describe(error)}"
        offered = f"{kernel}'s plugin {self.distribution} could not say whether it takes this"
        return (Reason("plugin", f"its supports_mask {said}", offered, "Report it to the plugin's authors."),)

    def load(self, point: EntryPoint) -> list[Manifest]:
        """Imports the plugin, and returns its manifests. Its problems are noted."""
        had_torch = "torch" in sys.modules
        manager = pluggy.PluginManager("longca")
        manager.add_hookspecs(hookspecs)
        try:
            module = point.load()
        except (Exception, SystemExit) as error:  # a library may call exit() if there is no GPU
            self.problems.append(f"its import raised {describe(error)}")
            return []
        try:
            manager.register(module, self.distribution)
            manager.check_pending()
        except (Exception, SystemExit) as error:
            known = "provide_kernel(), provide_cp_strategy() and supports_mask(kernel, problem)"
            self.problems.append(f"it breaks the hooks' contract: {describe(error)}. The hooks are {known}")
            return []
        if not manager.get_hookcallers(module):
            self.problems.append("it implements no hook; is @longca.hookimpl missing?")
        if not had_torch and "torch" in sys.modules:
            self.warnings.append("it imports torch when it is listed; move that import into the kernel")
        self._hooks = manager.hook
        return [
            *self._provided(manager.hook.provide_kernel, KernelManifest),
            *self._provided(manager.hook.provide_cp_strategy, StrategyManifest),
        ]

    def _provided(self, hook: pluggy.HookCaller, kind: type[Manifest]) -> list[Manifest]:
        """The manifests that a hook returned. A problem describes each that cannot be used."""
        if not hook.get_hookimpls():
            return []
        try:
            answer = (hook() or [None])[0]  # pluggy drops None, so an empty list means that the hook returned None
            several = isinstance(answer, Iterable) and not isinstance(answer, (str, bytes, dict, kind))
            items = list(answer) if several else [answer]
        except (Exception, SystemExit) as error:
            self.problems.append(f"{hook.name} raised {describe(error)}")
            return []
        faults = [_fault(item, kind, hook.name) for item in items]
        self.problems += dict.fromkeys(filter(None, faults))
        return [item for item, fault in zip(items, faults, strict=True) if not fault]


def describe(error: BaseException) -> str:
    """An exception in one line."""
    if isinstance(error, ValidationError):
        parts = (f"{'.'.join(map(str, part['loc']))}: {part['msg']}, not {part['input']!r}" for part in error.errors())
        return plain_text(f"{type(error).__name__}: {'; '.join(parts)}")
    return plain_text(f"{type(error).__name__}: {error}").rstrip(": ")


def load_plugins(disabled: frozenset[str] = frozenset()) -> list[tuple[PluginInfo, list[Manifest]]]:
    """All installed plugins with their manifests: the core first, then by distribution name.

    `disabled` names entry points or distributions to leave out. If LONGCA_PLUGINS is set, it names the plugins that are
    on, separated by commas. The core is always on. Only plugins that are on are imported.

    Raises:
        UnknownNameError: No plugin has one of the names.
        RequestError: The name is the core's, which cannot be switched off.
    """
    points = [(_unloaded(point), point) for point in entry_points(group=GROUP)]
    points.sort(key=lambda pair: pair[0].order)
    _switch_off([plugin for plugin, _ in points], disabled)
    with redirect_stdout(sys.stderr):  # a listing's JSON stays valid
        return [(plugin, [] if plugin.off else plugin.load(point)) for plugin, point in points]


def _unloaded(point: EntryPoint) -> PluginInfo:
    distribution = point.dist
    assert distribution is not None, "entry_points() says where each comes from"
    name, version = distribution.name or point.name, distribution.version or ""  # an uninstallation that was cut short
    return PluginInfo(point.name, name, version, point.value.partition(":")[0].strip())


def _switch_off(plugins: list[PluginInfo], disabled: frozenset[str]) -> None:
    text = os.environ.get("LONGCA_PLUGINS")
    allowed = None if text is None else [name for name in map(str.strip, text.split(",")) if name]
    for name in (*(allowed or ()), *sorted(disabled)):
        found = [plugin for plugin in plugins if plugin.is_named(name)]
        if not found:
            raise UnknownNameError("plugin", name, {name for p in plugins for name in (p.name, p.distribution)})
        if name in disabled and any(plugin.is_core for plugin in found):
            raise RequestError(f"{name!r} is the core's own plugin, which cannot be switched off")
    for plugin in plugins:
        if any(map(plugin.is_named, disabled)):
            plugin.off = "switched off by --no-plugin"
        elif allowed is not None and not plugin.is_core and not any(map(plugin.is_named, allowed)):
            plugin.off = "not in LONGCA_PLUGINS"


def _fault(item: Any, kind: type[Manifest], hook: str) -> str:
    if not isinstance(item, kind):
        got = "None" if item is None else f"an object of type {type(item).__name__}"
        return f"{hook} returned {got}; it returns one {kind.__name__} or several"
    if API_VERSION not in item.api:
        advice = "upgrade longca-core" if max(item.api) > API_VERSION else "upgrade the plugin"
        written = ", ".join(map(str, item.api))
        return f"{item.name!r} is written for plugin API {written}, this is {API_VERSION}; {advice}"
    return ""
