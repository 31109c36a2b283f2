"""Checks of a plugin and of a kernel's implementation. They call no kernel.

A check returns if all is well, and raises `PluginError` otherwise.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from importlib_metadata import packages_distributions
from packaging.utils import canonicalize_name

from longca.errors import PluginError
from longca.manifests import Device
from longca.manifests.packages import alternatives
from longca.plugins import PluginInfo, Registry
from longca.processes import how_it_ended
from longca_bench.conformance.isolation import Isolation
from longca_bench.measuring.remote_kernel import RemoteKernel
from longca_bench.measuring.results import methods_of

__all__ = ["admitted", "light_import", "loadable"]

_SECONDS = 120
#: Imports the plugin's module in a fresh interpreter, and prints all loaded modules.
_LISTING = """
import importlib, json, sys
sys.path[:] = json.loads(sys.argv[2])
importlib.import_module(sys.argv[1])
print(json.dumps(sorted(sys.modules)))
"""


def admitted(plugin: PluginInfo) -> None:
    """LongCA admits the plugin and has no complaint."""
    if plugin.off:
        raise PluginError(f"{plugin.distribution} is switched off: {plugin.off}")
    if complaints := plugin.problems + plugin.warnings:
        raise PluginError(f"{plugin.distribution}: {'; '.join(complaints)}")
    if not plugin.active:
        raise PluginError(
            f"{plugin.distribution} provides nothing; implement a hook of longca.hookspecs in {plugin.module}"
        )


def light_import(registry: Registry, plugin: PluginInfo) -> None:
    """A listing of the plugin imports no torch, no implementation, and no package that a manifest requires."""
    manifests = [registry.manifest(name) for name in plugin.kernels]
    texts = (text for m in manifests for text in (*m.requires, *(r for o in m.offers for r in o.requires)))
    required = {canonicalize_name(wanted.name) for text in texts for wanted in alternatives(text)}
    heavy = {"torch"} | {m.implementation.partition(":")[0] for m in manifests}
    heavy |= {
        name
        for name, found in packages_distributions().items()
        if required & {canonicalize_name(owner) for owner in found}
    }
    if imported := sorted(heavy & _modules_after_import(plugin.module)):
        raise PluginError(
            f"importing {plugin.module} imports {', '.join(imported)}; every listing imports {plugin.module}. "
            "Move that import into the implementation's module"
        )


def loadable(registry: Registry, kernel: str, device: Device, isolation: Isolation = Isolation()) -> None:
    """The implementation can be imported. Its instance has plan, and forward and backward if they are offered."""
    loaded = isolation.kernel(registry, kernel, device)
    methods = loaded.load() if isinstance(loaded, RemoteKernel) else methods_of(loaded)
    directions = {direction for offer in registry.manifests(kernel)[-1].offers for direction in offer.directions}
    wanted = {"plan": set[str](), "forward": {"out", "lse"}, "backward": {"dq", "dk", "dv"}}
    for method in ("plan", *(name for name in wanted if name in directions)):
        if method not in methods:
            raise PluginError(f"{kernel} has no method {method}; see longca.kernels.base.Kernel")
        if (absent := sorted(wanted[method].difference(methods[method]))) and "**" not in methods[method]:
            raise PluginError(f"{kernel}.{method} does not take {', '.join(absent)}; see longca.kernels.base.Kernel")


def _modules_after_import(module: str) -> set[str]:
    """All modules that an import of the module loads in a fresh process, or a PluginError."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", "-c", _LISTING, module, json.dumps(sys.path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False, env=environment)
    except subprocess.TimeoutExpired:
        raise PluginError(f"the import of {module} in a fresh process took more than {_SECONDS} seconds") from None
    try:
        return set(json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        words = " ".join(done.stderr.splitlines()[-1:])[:500]
        ended = how_it_ended(done.returncode)
        raise PluginError(f"{module} cannot be imported: its process {ended}. {words}".rstrip()) from None
