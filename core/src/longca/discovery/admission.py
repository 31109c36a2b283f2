"""Admitting plugins: importing a plugin, calling its hooks, and keeping the valid manifests.

A failure of a plugin stays in that plugin's entry. An exception, an exit or a wrong return value becomes a sentence in
`Admission.problems`. `longca.discovery.probing` catches hangs and `os._exit` before this step.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeVar

import pluggy
from pydantic import ValidationError

from longca import hookspecs
from longca.discovery.candidates import Candidate
from longca.discovery.quiet import stdout_to_stderr
from longca.manifests import API_VERSION, KernelManifest, Manifest, Problem, Reason, StrategyManifest, Verdict

__all__ = ["Admission", "admit", "ask_hooks", "can_veto", "describe", "import_plugin", "veto"]

_Any = TypeVar("_Any", bound=Manifest)


@dataclass
class Admission:
    """The manifests and hooks of one plugin, and its problems.

    Attributes:
        manager: A plugin manager with the hooks of this plugin alone, so no plugin can wrap or break another's hooks.
        kernels: The valid kernel manifests.
        strategies: The valid strategy manifests.
        problems: One sentence for each problem.
    """

    manager: pluggy.PluginManager | None = None
    kernels: list[KernelManifest] = field(default_factory=list)
    strategies: list[StrategyManifest] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def admit(candidate: Candidate) -> Admission:
    """Imports a plugin and collects the manifests that it provides."""
    with stdout_to_stderr():
        try:
            plugin = import_plugin(candidate.module, candidate.attr)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plugin may call exit()
            return Admission(problems=[f"importing {candidate.module} raised {describe(error)}"])
        return ask_hooks(plugin, candidate.distribution)


def import_plugin(module: str, attr: str) -> object:
    """The module, or the object in a module, that an entry point names."""
    return reduce(getattr, filter(None, attr.split(".")), importlib.import_module(module))


def ask_hooks(plugin: object, name: str) -> Admission:
    """Registers a plugin and calls the hooks that provide manifests."""
    manager = pluggy.PluginManager("longca")
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(plugin, name)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        hooks = "provide_kernel(), provide_cp_strategy() and supports_mask(kernel, problem)"
        return Admission(problems=[f"it breaks the hooks' contract: {_one_line(error)}. The hooks are {hooks}"])
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Admission(problems=[f"looking for its hooks raised {describe(error)}"])
    admission = Admission(manager)
    if not manager.get_hookcallers(plugin):
        admission.problems.append("it implements no hook; is @longca.hookimpl missing?")
    admission.kernels = _provided(manager.hook.provide_kernel, KernelManifest, admission.problems)
    admission.strategies = _provided(manager.hook.provide_cp_strategy, StrategyManifest, admission.problems)
    return admission


def _provided(hook: pluggy.HookCaller, kind: type[_Any], problems: list[str]) -> list[_Any]:
    """The valid manifests that a hook returned. Invalid ones are described in `problems`."""
    if not hook.get_hookimpls():
        return []
    try:
        # pluggy drops None, so an empty list means that the hook returned None.
        answer = (hook() or [None])[0]
        several = isinstance(answer, Iterable) and not isinstance(answer, (str, bytes, dict, kind))
        items = list(answer) if several else [answer]
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        problems.append(f"{hook.name} raised {describe(error)}")
        return []
    kept: dict[str, _Any] = {}
    for item in items:
        if fault := _fault(item, kind, hook.name):
            problems.append(fault)
        elif item.name in kept:
            problems.append(f"{hook.name} returned two manifests named {item.name!r}; the second is left out")
        else:
            kept[item.name] = item
    return list(kept.values())


def _fault(item: Any, kind: type[Manifest], hook: str) -> str:
    if not isinstance(item, kind):
        got = "None" if item is None else f"an object of type {type(item).__name__}"
        return f"{hook} returned {got}; it returns one {kind.__name__} or several"
    if API_VERSION not in item.api:
        written = ", ".join(map(str, item.api))
        newer = max(item.api) > API_VERSION
        advice = "upgrade longca-core" if newer else "upgrade the plugin"
        return f"{item.name!r} is written for plugin API {written}, this is {API_VERSION}; {advice}"
    return ""


def can_veto(admission: Admission) -> bool:
    """Whether the plugin implements the hook that can refuse a problem."""
    return admission.manager is not None and bool(admission.manager.hook.supports_mask.get_hookimpls())


def veto(admission: Admission, kernel: str, problem: Problem) -> tuple[Reason, ...]:
    """The plugin's reasons against a problem that its kernel's manifest covers."""
    if admission.manager is None or not can_veto(admission):
        return ()
    offered = f"{kernel}'s plugin could not say whether it takes this"
    advice = "Report it to the plugin's authors."
    try:
        with stdout_to_stderr():
            answer = (admission.manager.hook.supports_mask(kernel=kernel, problem=problem) or [None])[0]
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return (Reason("plugin", f"its supports_mask raised {describe(error)}", offered, advice),)
    if answer is None:
        return ()
    if not isinstance(answer, Verdict):
        asked = f"its supports_mask returned an object of type {type(answer).__name__}, not a Verdict or None"
        return (Reason("plugin", asked, offered, advice),)
    return answer.reasons


def describe(error: BaseException) -> str:
    """Describes an exception in one line."""
    return f"{type(error).__name__}: {_one_line(error)}".rstrip(": ")


def _one_line(error: BaseException) -> str:
    try:
        if isinstance(error, ValidationError):
            return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}, not {e['input']!r}" for e in error.errors())
        return " ".join(str(error).split())
    except Exception:  # str() of the exception raised
        return ""
