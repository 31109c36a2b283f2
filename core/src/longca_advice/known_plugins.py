"""Plugins that the evidence knows: the manifests that come with it, so that kernels are ranked without being installed.

`results/make_evidence.py` writes the file, one distribution a line. A strategy's layouts are code, so the file has the
names of strategies alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from importlib import resources

from pydantic import BaseModel, ConfigDict

from longca.discovery import PluginInfo
from longca.manifests import KernelManifest, missing
from longca.manifests.installs import held_by_torch, install_line
from longca.manifests.packages import installed_version
from longca.plugins import Registry

__all__ = ["KnownPlugin", "absent_strategies", "install_of", "installable", "known_plugins", "lacking", "with_known"]


class KnownPlugin(BaseModel):
    """One distribution.

    Attributes:
        distribution: Its name.
        name: The name of its entry point. Empty for a kit, which has none.
        folder: Its folder in LongCA's repository.
        needs: Kits of LongCA that it imports.
        kernels: Its kernels, without the functions that only the installed distribution has.
        strategies: Names of its context-parallel strategies.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    distribution: str
    name: str = ""
    folder: str
    needs: tuple[str, ...] = ()
    kernels: tuple[KernelManifest, ...] = ()
    strategies: tuple[str, ...] = ()


@cache
def known_plugins() -> dict[str, KnownPlugin]:
    """The plugins of the file, by distribution."""
    file = resources.files("longca_advice") / "known_plugins.jsonl"
    found = map(KnownPlugin.model_validate_json, file.read_text(encoding="utf-8").splitlines())
    return {plugin.distribution: plugin for plugin in found}


@lru_cache(maxsize=8)
def with_known(registry: Registry) -> Registry:
    """A registry with all kernels that the evidence knows. A plugin that is switched off stays so."""
    here = {plugin.distribution for plugin in registry.plugins if plugin.off or plugin.active}
    absent = [plugin for name, plugin in known_plugins().items() if name not in here and plugin.kernels]
    made = (PluginInfo(each.name, each.distribution, "", "", installed=False) for each in absent)
    return registry.extended(zip(made, (each.kernels for each in absent), strict=True)) if absent else registry


def absent_strategies(registry: Registry) -> dict[str, str]:
    """The strategies that the evidence knows and no plugin provides here, each with its distribution."""
    here = {plugin.distribution for plugin in registry.plugins if plugin.off}
    known = ((name, each.distribution) for each in known_plugins().values() for name in each.strategies)
    return {name: its for name, its in known if its not in here and name not in registry.strategies}


def install_of(distributions: Iterable[str], commands: Iterable[str] = ()) -> str:
    """The line that installs distributions of LongCA with the kits that they need, and then makes some commands."""
    known = known_plugins()
    names = [each for name in distributions for each in (*(known[name].needs if name in known else ()), name)]
    first = [f"pip install {' '.join(names)}"] if names else []
    return install_line(*first, *commands, folders={name: each.folder for name, each in known.items()})


def lacking(registry: Registry, needed: Mapping[str, Iterable[str]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The plugins and packages that some kernels lack here, in words, and the line that installs them, if one does.

    Args:
        registry: The registry of the kernels.
        needed: The packages that each kernel requires.
    """
    words, absent, commands, held = dict[str, None](), dict[str, None](), dict[str, None](), False
    for kernel, requires in needed.items():
        manifest, plugin = registry.manifest(kernel), registry.provider(kernel)
        if not plugin.installed:
            absent[plugin.distribution] = None
            has = "provides nothing here" if installed_version(plugin.distribution) else "is not installed"
            words[f"{plugin.distribution} {has}"] = None
        for text in requires:
            if reason := missing(text):
                words[reason] = commands[manifest.install or f"pip install '{text}'"] = None
                held = held or bool(held_by_torch(text))
    return tuple(words), (install_of(absent, commands),) if words and not held else ()


@lru_cache(maxsize=8)
def installable(registry: Registry) -> dict[str, str]:
    """The kernels that lack something here, each with the line that installs it."""
    lines = ((name, lacking(registry, {name: its.requires})[1]) for name, its in registry.kernels.items())
    return {name: line[0] for name, line in lines if line}
