"""Isolation: a kernel that is verified runs in a worker of its distributions, or in this process.

The process that examines draws inputs, computes references and compares, and it runs no kernel that is isolated.
"""

from __future__ import annotations

import atexit
import os
import time
from dataclasses import dataclass, field

import torch

from longca.kernels.base import Kernel, torch_device
from longca.manifests import Device
from longca.plugins import Registry
from longca_bench.measuring.options import DEADLINE
from longca_bench.measuring.remote_kernel import RemoteKernel
from longca_bench.measuring.results import methods_of
from longca_bench.measuring.worker import Workers

__all__ = ["Isolation"]

_OF_EACH_TEST = "PYTEST_CURRENT_TEST"  # a variable that differs in each test, and of which no kernel knows
_MOST_UNUSED = 200  # blocks of shared memory without a tensor, each of which holds a file descriptor


@dataclass(frozen=True)
class Isolation:
    """Where kernels run.

    Attributes:
        isolated: Whether kernels run in workers. Else they run in this process, without a deadline.
        timeout: Seconds that an isolated kernel may take for each problem.
    """

    isolated: bool = True
    timeout: float = DEADLINE

    def kernel(self, registry: Registry, name: str, device: Device) -> Kernel:
        """A kernel or a pair. If it is isolated, its time begins now, and a fresh worker replaces one that was lost.

        Args:
            registry: The kernel's registry.
            name: The name of the kernel, or of the pair.
            device: The device.
        """
        if self.isolated:
            return self._remote(registry, name, device)
        kernel: Kernel = registry.load(name)
        return kernel

    def methods(self, registry: Registry, name: str, device: Device) -> dict[str, list[str]]:
        """The names of the arguments of each method of a kernel. `**` stands for any others. See `kernel`."""
        if self.isolated:
            return self._remote(registry, name, device).load()
        return methods_of(registry.load(name))

    def _remote(self, registry: Registry, name: str, device: Device) -> RemoteKernel:
        return _workers_on(torch_device(device)).kernel(registry, name, self.timeout)


@dataclass
class _KernelWorkers:
    """The workers for one device, and the kernels in them.

    Attributes:
        workers: The workers.
        environment: The environment of this process when they were made.
    """

    workers: Workers
    environment: dict[str, str]
    _kernels: dict[tuple[str, frozenset[str]], RemoteKernel] = field(default_factory=dict)

    def kernel(self, registry: Registry, name: str, timeout: float) -> RemoteKernel:
        """A kernel that has some seconds from now on. Starting its worker takes nothing of them."""
        self.workers.deadline = time.monotonic() + timeout
        if len(self.workers.arena.unused) > _MOST_UNUSED:
            self.workers.trim()
        key = name, frozenset(provider.distribution for provider in registry.providers(name))
        if key not in self._kernels:
            self._kernels[key] = RemoteKernel(self.workers, *key)
        self.workers.deadline = None  # a new worker runs no code of a plugin yet
        self._kernels[key].start()
        self.workers.deadline = time.monotonic() + timeout
        return self._kernels[key]


_kept: dict[torch.device, _KernelWorkers] = {}


def _workers_on(place: torch.device) -> _KernelWorkers:
    environment = {name: value for name, value in os.environ.items() if name != _OF_EACH_TEST}
    if place in _kept and _kept[place].environment != environment:
        _kept.pop(place).workers.close()
    if place not in _kept:
        _kept[place] = _KernelWorkers(Workers(place), environment)
    return _kept[place]


def _close() -> None:
    while _kept:
        _kept.popitem()[1].workers.close()


atexit.register(_close)
# A forked process has no share in the workers of the process that it was forked from.
os.register_at_fork(after_in_child=_kept.clear)
