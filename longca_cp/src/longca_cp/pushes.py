"""Pushes: whether the ranks of a strategy write into each other's memory, if they can. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from longca.manifests import Transport

__all__ = ["takes_links"]

#: The most GPUs of a strategy whose links `auto` takes: they are verified on so many.
VERIFIED_RANKS = 2


def takes_links(transport: Transport, ranks: Iterable[int], on_gpus: bool) -> bool:
    """Whether the axes of a strategy get links, on one host whose ranks have mutual access to memory.

    Args:
        transport: The way to move tensors.
        ranks: Ranks along each of the strategy's axes.
        on_gpus: Whether the ranks compute on GPUs.
    """
    total = prod(ranks)
    if transport is Transport.AUTO:
        return on_gpus and 1 < total <= VERIFIED_RANKS
    return transport is Transport.COPY_ENGINE and total > 1
