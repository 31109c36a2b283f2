"""Plugins that the evidence knows: the manifests that come with it, so that kernels are ranked without being installed.

`results/make_evidence.py` writes the file, one distribution a line. A strategy's layouts are code, so the file has the
names of strategies alone.
"""

from __future__ import annotations

from functools import cache, lru_cache
from importlib import resources

from pydantic import BaseModel, ConfigDict

from longca.discovery import PluginInfo
from longca.manifests import KernelManifest, missing
from longca.manifests.installs import install_line, remedy
from longca.manifests.packages import installed_version
from longca.plugins import Registry

__all__ = ["KnownPlugin", "absent_strategies", "install_of", "known_plugins", "lacking", "with_known"]


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


def install_of(distribution: str, stated: str | None = None) -> str:
    """The line that installs a distribution, by a stated command if that names the distribution."""
    known = known_plugins()
    needs = " ".join(known[distribution].needs) if distribution in known else ""
    command = stated if stated and distribution in stated else f"pip install {distribution}"
    line = command.replace("pip install", f"pip install {needs}".rstrip(), 1)
    return install_line(line, {name: each.folder for name, each in known.items()})


def lacking(registry: Registry, manifest: KernelManifest, requires: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """What a kernel lacks here in words, and the commands that install it, if some do.

    Args:
        registry: The registry of the manifest.
        manifest: The kernel's manifest.
        requires: Packages that it needs, its own and those of its offers.
    """
    plugin, packages = registry.provider(manifest.name), dict.fromkeys(text for text in requires if missing(text))
    words = [str(missing(text)) for text in packages]
    advice = [remedy(text, manifest.install) for text in packages]
    held = [text for text in advice if not text.startswith("Install it: ")]
    commands = [text.removeprefix("Install it: ") for text in advice]
    if not plugin.installed:
        name = plugin.distribution
        words = [f"{name} provides nothing here" if installed_version(name) else f"{name} is not installed", *words]
        stated = manifest.install if packages else None
        first = install_of(name, stated)
        commands = [first] if stated and name in stated else [first, *commands]
    return words, [] if held else list(dict.fromkeys(commands))
