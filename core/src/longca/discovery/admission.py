"""Admitting plugins: importing a plugin, calling its hooks, and keeping the valid manifests.

A failure of a plugin stays in that plugin's entry. An exception, an exit or a wrong return value becomes a sentence in
`Admission.problems`. A process of its own also stops hangs and `os._exit`: see `longca.discovery.guarded`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from functools import reduce
from itertools import islice
from typing import Any, TypeVar

import pluggy

from longca import hookspecs
from longca.discovery.candidates import Candidate
from longca.discovery.describing import describe
from longca.discovery.functions import BrokenFunctionError, check_returned
from longca.discovery.loading import load_object
from longca.discovery.quiet import stdout_to_stderr
from longca.errors import LongCAError
from longca.manifests import API_VERSION, KernelManifest, Manifest, Problem, Reason, StrategyManifest, Verdict
from longca.plain_text import plain_text, type_name

__all__ = ["Admission", "HookError", "Hooks", "admit", "ask_hooks", "import_plugin"]

_Any = TypeVar("_Any", bound=Manifest)
#: Characters of a text in a manifest, manifests of a hook, faults of these that are named, and reasons of a veto.
_MOST_TEXT, _MOST_MANIFESTS, _MOST_FAULTS, _MOST_REASONS = 500, 1000, 10, 20


class HookError(Exception):
    """A plugin's hook gives no answer that counts. The message is a clause without the plugin's name."""


class Admission:
    """The manifests of one plugin, its problems, and ways to ask it.

    Attributes:
        distribution: The plugin's distribution.
        kernels: The valid kernel manifests.
        strategies: The valid strategy manifests.
        problems: One sentence for each problem.
    """

    def __init__(self, distribution: str, problems: Iterable[str] = ()) -> None:
        self.distribution = distribution
        self.kernels: list[KernelManifest] = []
        self.strategies: list[StrategyManifest] = []
        self.problems = list(problems)

    @property
    def can_veto(self) -> bool:
        """Whether the plugin implements the hook that can refuse a problem."""
        return False

    def ask_veto(self, kernel: str, problems: Iterable[Problem]) -> tuple[Reason, ...]:
        """The plugin's reasons against the first problem that it refuses.

        Raises:
            HookError: The hook fails.
        """
        return ()

    def veto(self, kernel: str, problems: Iterable[Problem]) -> tuple[Reason, ...]:
        """The plugin's reasons against problems that its kernel's manifest covers. A hook that fails is a reason."""
        try:
            return self.ask_veto(kernel, problems)
        except HookError as error:
            offered = f"{kernel}'s plugin {self.distribution} could not say whether it takes this"
            return (Reason("plugin", str(error), offered, "Report it to the plugin's authors."),)

    def call(self, manifest: Manifest, field: str, arguments: tuple[Any, ...]) -> Any:
        """The result of a torch-free function that a field of a manifest names.

        Raises:
            LongCAError: The function raises it.
            BrokenFunctionError: The function raises anything else, or returns something else.
        """
        name = f"{getattr(manifest, field)} of plugin {self.distribution}"
        function = load_object(manifest, getattr(manifest, field), self.distribution)
        try:
            return check_returned(field, function(*arguments), name)
        except (KeyboardInterrupt, LongCAError):
            raise
        except BaseException as error:
            raise BrokenFunctionError(f"{name} raised {describe(error)}") from error


class Hooks(Admission):
    """A plugin that was imported in this process.

    Attributes:
        manager: A plugin manager with the hooks of this plugin alone, so no plugin can wrap or break another's hooks.
    """

    def __init__(self, distribution: str, plugin: object, manager: pluggy.PluginManager) -> None:
        super().__init__(distribution)
        self.manager = manager
        if not manager.get_hookcallers(plugin):
            self.problems.append("it implements no hook; is @longca.hookimpl missing?")
        self.kernels = _provided(manager.hook.provide_kernel, KernelManifest, self.problems)
        self.strategies = _provided(manager.hook.provide_cp_strategy, StrategyManifest, self.problems)

    @property
    def can_veto(self) -> bool:
        """Whether the plugin implements the hook that can refuse a problem."""
        return bool(self.manager.hook.supports_mask.get_hookimpls())

    def ask_veto(self, kernel: str, problems: Iterable[Problem]) -> tuple[Reason, ...]:
        """The plugin's reasons against the first problem that it refuses.

        Raises:
            HookError: The hook raises, or returns something else.
        """
        with stdout_to_stderr():
            return next(filter(None, (self._reasons(kernel, problem) for problem in problems)), ())

    def _reasons(self, kernel: str, problem: Problem) -> tuple[Reason, ...]:
        try:
            answer = (self.manager.hook.supports_mask(kernel=kernel, problem=problem) or [None])[0]
            if answer is None:
                return ()
            if isinstance(answer, Verdict):
                return tuple(_tidy_reason(reason) for reason in islice(answer.reasons, _MOST_REASONS))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise HookError(f"its supports_mask raised {describe(error)}") from error
        raise HookError(f"its supports_mask returned an object of type {type_name(answer)}, not a Verdict or None")


def _tidy_reason(reason: Reason) -> Reason:
    return Reason(*(plain_text(text) for text in (reason.code, reason.asked, reason.offered, reason.advice)))


def admit(candidate: Candidate) -> Admission:
    """Imports a plugin and collects the manifests that it provides."""
    with stdout_to_stderr():
        try:
            plugin = import_plugin(candidate.module, candidate.attr)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plugin may call exit()
            said = f"importing {candidate.module} raised {describe(error)}"
            return Admission(candidate.distribution, [said])
        return ask_hooks(plugin, candidate.distribution)


def import_plugin(module: str, attr: str) -> object:
    """The module, or the object in a module, that an entry point names."""
    return reduce(getattr, filter(None, attr.split(".")), importlib.import_module(module))


def ask_hooks(plugin: object, distribution: str) -> Admission:
    """Registers a plugin and calls the hooks that provide manifests."""
    manager = pluggy.PluginManager("longca")
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(plugin, distribution)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        hooks = "provide_kernel(), provide_cp_strategy() and supports_mask(kernel, problem)"
        said = f"it breaks the hooks' contract: {plain_text(error)}. The hooks are {hooks}"
        return Admission(distribution, [said])
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Admission(distribution, [f"looking for its hooks raised {describe(error)}"])
    return Hooks(distribution, plugin, manager)


def _provided(hook: pluggy.HookCaller, kind: type[_Any], problems: list[str]) -> list[_Any]:
    """The valid manifests that a hook returned. Invalid ones are described in `problems`."""
    if not hook.get_hookimpls():
        return []
    try:
        # pluggy drops None, so an empty list means that the hook returned None.
        answer = (hook() or [None])[0]
        several = isinstance(answer, Iterable) and not isinstance(answer, (str, bytes, dict, kind))
        items = list(islice(answer, _MOST_MANIFESTS)) if several else [answer]
        return _valid(items, kind, hook.name, problems)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        problems.append(f"{hook.name} raised {describe(error)}")
        return []


def _valid(items: list[Any], kind: type[_Any], hook: str, problems: list[str]) -> list[_Any]:
    kept: dict[str, _Any] = {}
    faults: dict[str, None] = {}  # a generator may yield a thousand alike
    for item in items:
        if fault := _fault(item, kind, hook):
            faults[fault] = None
        elif item.name in kept:
            faults[f"{hook} returned several manifests named {item.name!r}; all but the first are left out"] = None
        else:
            kept[item.name] = _tidy(item)
    problems += islice(faults, _MOST_FAULTS)
    if (more := len(faults) - _MOST_FAULTS) > 0:
        problems.append(f"{hook} returned manifests with {more} more faults")
    return list(kept.values())


def _tidy(manifest: _Any) -> _Any:
    """A manifest whose texts are bounded and printable."""
    named = ("title", "upstream", "license", "install")
    texts = {name: text for name in named if (text := getattr(manifest, name)) is not None}
    tidy = {name: plain_text(text, _MOST_TEXT) for name, text in texts.items()}
    return manifest if tidy == texts else manifest.model_copy(update=tidy)


def _fault(item: Any, kind: type[Manifest], hook: str) -> str:
    if not isinstance(item, kind):
        got = "None" if item is None else f"an object of type {type_name(item)}"
        return f"{hook} returned {got}; it returns one {kind.__name__} or several"
    if API_VERSION not in item.api:
        written = plain_text(", ".join(map(str, item.api[:9])))
        newer = max(item.api) > API_VERSION
        advice = "upgrade longca-core" if newer else "upgrade the plugin"
        return f"{item.name!r} is written for plugin API {written}, this is {API_VERSION}; {advice}"
    return ""
