"""The hooks a plugin may implement: all that LongCA asks of one.

A plugin is a distribution with an entry point in the group `longca` that names a module; the module's functions that
are marked with `longca.hookimpl` and named as below are its hooks. The module must import quickly, and neither torch
nor the kernel's library: it is imported whenever kernels are listed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from longca.manifests import KernelManifest, Problem, StrategyManifest, Verdict

__all__ = ["hookimpl", "hookspec", "provide_cp_strategy", "provide_kernel", "supports_mask"]

hookspec = pluggy.HookspecMarker("longca")
hookimpl = pluggy.HookimplMarker("longca")


@hookspec
def provide_kernel() -> KernelManifest | Iterable[KernelManifest]:  # type: ignore[empty-body]
    """The attention kernels of this plugin.

    Called once a process, when the registry is first asked for, without arguments.

    Returns:
        One manifest or several. A manifest whose name is taken, or that is written for other API versions, is left
        out and reported by `longca plugins`.
    """


@hookspec
def provide_cp_strategy() -> StrategyManifest | Iterable[StrategyManifest]:  # type: ignore[empty-body]
    """The context-parallel strategies of this plugin.

    Called once a process, right after `provide_kernel`, without arguments.

    Returns:
        One manifest or several, under the same conditions.
    """


@hookspec
def supports_mask(kernel: str, problem: Problem) -> Verdict | None:
    """A veto for what an offer cannot say.

    Called whenever the manifest of one of this plugin's own kernels covers a problem; under context parallelism for
    each step that shows anything, once for steps that ask the same. It must be quick, and torch-free as the module is.

    Args:
        kernel: Name of the kernel.
        problem: What is asked. Its mask is a `Pattern` in listings, where there is no concrete mask at hand.
            A half of a pair is asked its own problem: its forward alone, or with `backward_only` its backward alone.

    Returns:
        A verdict whose reasons speak against it; a valid verdict, or None, to leave it to the manifest.
    """
