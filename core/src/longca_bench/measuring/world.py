"""Worlds: the ranks that measure together, seen from one of them. One device is a world of size 1."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

__all__ = ["World"]

_T = TypeVar("_T")


class World:
    """The world of one device. It needs no process group, and talking costs no time.

    `longca_bench.ranks.world.JobWorld` is the world of several ranks.

    Args:
        device: The device that computes.

    Attributes:
        rank: The number of this rank.
        size: Number of ranks.
        device: The device of this rank.
        batch: Timed calls after which ranks tell each other their times.
    """

    rank, size, batch = 0, 1, 1

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def everyone(self, value: _T, kind: Any = Any) -> list[_T]:
        """Every rank's value, on every rank. It is also a barrier of the hosts.

        Args:
            value: This rank's value. Ranks send it as JSON.
            kind: The value's type. `Any` leaves lists in place of tuples.
        """
        return [value]

    def meet(self) -> None:
        """Takes the memory that later exchanges need. Inputs and references may fill the device by then."""

    def line_up(self) -> None:
        """A barrier of the devices: work that is launched after it begins when all ranks have reached it."""

    def synchronize(self) -> None:
        """Waits until this rank's device has finished all its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def wait(self, event: torch.cuda.Event) -> None:
        """Waits until this rank's device has reached an event."""
        event.synchronize()

    def give_back(self) -> None:
        """Gives memory that this process does not use back to the device, where another process needs it."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def all_to_all(self, sent: Tensor, sizes_out: list[int], sizes_in: list[int]) -> Tensor:
        """Exchanges parts of flat tensors among ranks.

        Args:
            sent: The parts for each rank, in the order of ranks.
            sizes_out: The size of the part for each rank.
            sizes_in: The size of the part from each rank.

        Returns:
            The parts from each rank, in the order of ranks.
        """
        return sent
