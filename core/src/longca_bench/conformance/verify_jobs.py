"""Verifying many offers at a time: what takes long is that kernels compile, for which one process has one core."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

from longca.manifests import Device
from longca.plugins import Registry, registry
from longca_bench.conformance.offers import OfferCheck, offered, verify_kernel, verify_offer

__all__ = ["verify_kernels"]


def verify_kernels(
    source: Registry, kernels: Sequence[str], device: Device, jobs: int = 1
) -> Iterator[tuple[str, list[OfferCheck]]]:
    """Verifies kernels, one after the other or their offers side by side; see `verify_kernel`.

    Args:
        source: Where the kernels come from.
        kernels: Their names.
        device: Where to run them; with several jobs, every GPU in turn.
        jobs: Processes.

    Yields:
        Each kernel, as soon as all of its offers and of those before it are done.
    """
    if jobs == 1:
        for kernel in kernels:
            yield kernel, list(verify_kernel(source, kernel, device))
        return
    context = multiprocessing.get_context("spawn")
    started = context.Value("i", 0)
    with ProcessPoolExecutor(jobs, context, _start, (source.disabled, started)) as pool:
        asked = {
            kernel: [pool.submit(_verify, kernel, number, device) for number, _ in enumerate(offered(source, kernel))]
            for kernel in kernels
        }
        for kernel, checks in asked.items():
            yield kernel, [check.result() for check in checks]


_registry: Registry


def _start(disabled: frozenset[str], started: Any) -> None:
    """Opens a process's own registry, and takes the GPU whose turn it is."""
    global _registry
    _registry = registry(disabled)
    with started.get_lock():
        turn, started.value = started.value, started.value + 1
    if torch.cuda.is_available():
        torch.cuda.set_device(turn % torch.cuda.device_count())


def _verify(kernel: str, number: int, device: Device) -> OfferCheck:
    return verify_offer(_registry, kernel, *offered(_registry, kernel)[number], device)
