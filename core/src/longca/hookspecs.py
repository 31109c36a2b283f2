"""The hooks that a plugin may implement. LongCA asks nothing else of a plugin.

A plugin is a distribution with an entry point in the group `longca`, which names a module. Its hooks are the module's
functions with a name below and the mark `longca.hookimpl`. Every listing and every program that uses the registry
imports the module. So it must import quickly, without torch and without the kernel's library.
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

    LongCA calls it once in a process, at the first use of the registry, without arguments.

    Returns:
        One manifest or several. LongCA leaves out a manifest whose name is taken, or whose API versions differ.
        `longca plugins` reports it.
    """


@hookspec
def provide_cp_strategy() -> StrategyManifest | Iterable[StrategyManifest]:  # type: ignore[empty-body]
    """The context-parallel strategies of this plugin.

    LongCA calls it once in a process, right after `provide_kernel`, without arguments.

    Returns:
        One manifest or several, under the same conditions.
    """


@hookspec
def supports_mask(kernel: str, problem: Problem) -> Verdict | None:
    """A veto, for conditions that an offer cannot express.

    LongCA calls it if the manifest of one of this plugin's kernels covers a problem. Under context parallelism it calls
    it for each non-empty step, once for equal steps. The function must be quick and torch-free. If it raises, LongCA
    refuses the problem.

    Args:
        kernel: Name of the kernel.
        problem: The problem. Its mask is a `Pattern` in listings. A half of a pair gets its own problem: its forward
            alone, or with `backward_only` its backward alone.

    Returns:
        A verdict with reasons is a veto. A valid verdict or None leaves the decision to the manifest.
    """
