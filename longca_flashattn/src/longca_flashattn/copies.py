"""Copies of keys, so that one call shows queries several ranges of keys, and the sums of their gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Copies", "make_copies"]


@dataclass(frozen=True, eq=False)
class Copies:
    """Copies of keys.

    Attributes:
        keys: The key of each copy: int64 [copies].
        groups: Keys that have equally many copies, int64 [keys], and their copies, int64 [keys, copies of each]. A plan
            of the forward alone has none.
    """

    keys: Tensor
    groups: tuple[tuple[Tensor, Tensor], ...] = ()

    def made(self, x: Tensor) -> Tensor:
        """The copies of keys or values [Tk, H, D]: [copies, H, D]."""
        return x.index_select(0, self.keys)

    def summed(self, x: Tensor) -> Tensor:
        """For each key the sum of its copies' gradients [copies, H, D]: [Tk, H, D], summed in at least float32."""
        total = x.new_empty((sum(len(keys) for keys, _ in self.groups), *x.shape[1:]))
        dtype = torch.promote_types(x.dtype, torch.float32)
        for keys, copies in self.groups:
            total[keys] = x[copies].sum(1, dtype=dtype).to(x.dtype)
        return total


def make_copies(keys: NDArray[np.int64], seqlen_k: int, device: torch.device, *, with_sums: bool) -> Copies:
    """Puts the copies on a device.

    Args:
        keys: The key of each copy: [copies].
        seqlen_k: All keys.
        device: The device.
        with_sums: Whether gradients will be summed.
    """
    groups = []
    if with_sums:
        order, counts = np.argsort(keys, kind="stable"), np.bincount(keys, minlength=seqlen_k)
        first = np.cumsum(counts) - counts
        for count in np.unique(counts):
            some = np.flatnonzero(counts == count)
            copies = order[first[some, None] + np.arange(count)] if count else np.zeros((len(some), 0), np.int64)
            groups.append((torch.from_numpy(some).to(device), torch.from_numpy(copies).to(device)))
    return Copies(torch.from_numpy(keys).to(device), tuple(groups))
