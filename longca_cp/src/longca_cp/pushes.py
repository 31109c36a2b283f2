"""Pushes: the axes whose ranks write into each other's memory, if they can. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping

from longca.manifests import Transport

__all__ = ["LINKED_RANKS", "axes_with_links", "takes_link"]

#: The most GPUs of an axis that `auto` gives a link. On four, a link takes up to 19 % longer than collectives at 16 K
#: tokens, and 2 % less at 64 K (results/h100/distributed, four16k and usp64k). A mesh keeps its links for all lengths.
LINKED_RANKS = 2


def takes_link(transport: Transport, ranks: int, on_gpus: bool) -> bool:
    """Whether an axis gets a link, if its ranks are on one host and have mutual access to memory.

    Args:
        transport: The way to move tensors.
        ranks: Ranks along the axis.
        on_gpus: Whether they compute on GPUs.
    """
    if transport is Transport.AUTO:
        return on_gpus and 1 < ranks <= LINKED_RANKS
    return transport is Transport.COPY_ENGINE and ranks > 1


def axes_with_links(transport: Transport, axis_sizes: Mapping[str, int], on_gpus: bool) -> frozenset[str]:
    """The axes of a strategy that get links on one host. See `takes_link`."""
    return frozenset(axis for axis, ranks in axis_sizes.items() if takes_link(transport, ranks, on_gpus))
