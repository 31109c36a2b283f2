"""Capacity: the memory of a device, and the longest sequences and fewest ranks whose tensors fit into it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from longca.errors import RequestError, UnsupportedError
from longca.manifests import Device, Problem
from longca_advice.memory import held_bytes

__all__ = ["RESERVED", "Capacity", "fewest_ranks", "longest_sequence"]

#: Bytes that are left for the CUDA context, the code of loaded kernels, and the buffers of cuBLAS and NCCL.
RESERVED = 2**30

_UNITS = {
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


@dataclass(frozen=True)
class Capacity:
    """The memory of one device in bytes. Attention cannot have the reserved ones.

    Raises:
        RequestError: Nothing is left beside the reserved bytes.
    """

    total: int
    reserved: int = RESERVED

    def __post_init__(self) -> None:
        if self.usable <= 0:
            raise RequestError(
                f"a device of {self.total} bytes was given; {self.reserved} of them are reserved, so give a larger one"
            )

    @staticmethod
    def parse(text: str) -> Capacity:
        """A capacity named by its size, such as `80GB` (80 · 10⁹ bytes) or `80GiB` (80 · 2³⁰ bytes).

        Args:
            text: A number and a unit: MB, GB or TB, or MiB, GiB or TiB.

        Raises:
            RequestError: Anything else, or a size that leaves nothing beside the reserved bytes.
        """
        found = re.fullmatch(r"\s*([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([A-Za-z]+)\s*", text)
        units = {unit.lower(): size for unit, size in _UNITS.items()}
        if not found or found[2].lower() not in units:
            raise RequestError(
                f"{text!r} is no size of memory. Give a number and a unit, such as 80GB (80 · 10^9 bytes) or 80GiB "
                f"(80 · 2^30 bytes); units are {', '.join(_UNITS)}"
            )
        return Capacity(int(float(found[1]) * units[found[2].lower()]))

    @staticmethod
    def of(device: Device) -> Capacity | None:
        """The capacity of a device, or None if its memory is unknown."""
        return None if device.memory is None else Capacity(device.memory)

    @property
    def usable(self) -> int:
        """Bytes that attention can have."""
        return self.total - self.reserved

    def fits(self, size: int) -> bool:
        """Whether so many bytes fit beside the reserved ones."""
        return size <= self.usable


def longest_sequence(problem: Problem, capacity: Capacity, *, ranks: int = 1, training: bool = False) -> int:
    """The most tokens whose tensors alone fit: q, k, v, out and lse, in training also the gradients.

    Plans, workspaces and the strategy's memory come on top, so that a call with fewer tokens may still not fit.
    """
    return ranks * (capacity.usable // held_bytes(problem, 1, 1, training=training))


def fewest_ranks(problem: Problem, capacity: Capacity, *, training: bool = False) -> int:
    """The fewest ranks among which the tensors alone fit, shared evenly.

    Raises:
        UnsupportedError: Not even one token fits.
    """
    mask = problem.concrete_mask
    each = longest_sequence(problem, capacity, training=training)
    if each == 0:
        needed = held_bytes(problem, 1, 1, training=training)
        raise UnsupportedError(f"one token takes {needed} bytes, and a device has {capacity.usable} to give")
    return max(1, -(-max(mask.seqlen_q, mask.seqlen_k) // each))
