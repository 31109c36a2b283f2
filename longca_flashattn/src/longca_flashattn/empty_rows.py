"""Queries that see no key, and what their results are: 0, and −∞ as the log-sum-exp."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["EmptyRows"]

#: The most ranges that are filled one by one. A fill writes its rows alone, and a masked one passes over all rows.
_MOST_RANGES = 4


@dataclass(frozen=True, eq=False)
class EmptyRows:
    """The queries that see no key.

    Attributes:
        mask: Whether each query sees no key: bool [Tq].
        ranges: The first and the last + 1 of such queries that lie side by side. Empty if there are too many.
    """

    mask: Tensor
    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, empty: NDArray[np.bool_], device: torch.device) -> EmptyRows:
        """The rows on a device, from whether each query sees no key."""
        edges = np.flatnonzero(np.diff(np.r_[False, empty, False]))
        ranges = tuple((int(first), int(last)) for first, last in edges.reshape(-1, 2))
        return cls(torch.from_numpy(empty).to(device), ranges if len(ranges) <= _MOST_RANGES else ())

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.mask.nbytes

    def clear(self, out: Tensor) -> None:
        """Writes 0 to these rows of a tensor [Tq, H, D]."""
        for first, last in self.ranges:
            out[first:last].zero_()
        if not self.ranges:
            out.masked_fill_(self.mask[:, None, None], 0.0)

    def clear_sums(self, lse: Tensor) -> None:
        """Writes −∞ to these rows of log-sum-exps [H, Tq]."""
        lse.masked_fill_(self.mask, -torch.inf)
