"""Isolation: a kernel that is verified runs in a worker of its distributions, or in this process.

The process that examines draws inputs, computes references and compares, and it runs no kernel that is isolated.
"""

from __future__ import annotations

import atexit
import os
import time
from dataclasses import dataclass
from typing import Any

import torch

from longca.kernels.base import Kernel, torch_device
from longca.manifests import Device
from longca.plugins import Registry
from longca_bench.measuring.options import DEADLINE
from longca_bench.measuring.remote_kernel import RemoteKernel
from longca_bench.measuring.worker import Workers

__all__ = ["Isolation"]

#: The workers of this process with the kernels in them, for one device and one set of plugins at a time.
_kept: dict[tuple[Any, ...], tuple[Workers, dict[Any, RemoteKernel]]] = {}


@dataclass(frozen=True)
class Isolation:
    """Where kernels run: in workers, or in this process without a deadline.

    `timeout` has the seconds that an isolated kernel may take for each problem.
    """

    isolated: bool = True
    timeout: float = DEADLINE

    def kernel(self, registry: Registry, name: str, device: Device) -> Kernel:
        """A kernel or a pair. If it is isolated, its time begins now, and a fresh worker replaces one that was lost."""
        if not self.isolated:
            kernel: Kernel = registry.load(name)
            return kernel
        workers, kernels = _workers_on(torch_device(device))
        workers.deadline = time.monotonic() + self.timeout
        workers.trim()
        key = name, frozenset(provider.distribution for provider in registry.providers(name))
        if key not in kernels:
            kernels[key] = RemoteKernel(workers, *key)
        workers.deadline = None  # a new worker runs no code of a plugin yet
        kernels[key].start()
        workers.deadline = time.monotonic() + self.timeout
        return kernels[key]


def _workers_on(place: torch.device) -> tuple[Workers, dict[Any, RemoteKernel]]:
    key = place, os.environ.get("PYTHONPATH"), os.environ.get("LONGCA_PLUGINS")
    if key not in _kept:
        _close()
        _kept[key] = Workers(place), {}
    return _kept[key]


def _close() -> None:
    while _kept:
        _kept.popitem()[1][0].close()


atexit.register(_close)
# A forked process has no share in the workers of the process that it was forked from.
os.register_at_fork(after_in_child=_kept.clear)
