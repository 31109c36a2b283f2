"""Order: rows that arrive rank by rank, put into the ascending order of their tokens, and back.

Kernels get tokens in ascending global order: in any other, the cut of a causal mask would fall into many intervals.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Order"]


class Order:
    """Which of the rows that arrive hold which of the tokens that are wanted.

    Args:
        arriving: The global position of each row's token; −1 for rows that hold none.
        wanted: The positions that are wanted, ascending, each held by one row.
        device: Where the rows are.
    """

    def __init__(self, arriving: NDArray[np.int64], wanted: NDArray[np.int64], device: torch.device) -> None:
        by_position = np.argsort(arriving, kind="stable")
        rows = by_position[np.searchsorted(arriving, wanted, sorter=by_position)]
        assert np.array_equal(arriving[rows], wanted), "every token wanted arrives"
        self._arriving, self._whole = len(arriving), len(wanted) == len(arriving)
        is_in_order = self._whole and np.array_equal(rows, np.arange(len(rows)))
        self._rows = None if is_in_order else torch.from_numpy(rows).to(device)

    def ascending(self, rows: Tensor) -> Tensor:
        """The tokens wanted, [wanted, ...], of rows as they arrive, [arriving, ...]; a copy only where need be."""
        return rows if self._rows is None else rows.index_select(0, self._rows)

    def arriving(self, tokens: Tensor) -> Tensor:
        """The opposite way: [arriving, ...] of [wanted, ...], contiguous; 0 in rows that hold nothing wanted."""
        if self._rows is None:
            return tokens.contiguous()
        shape = (self._arriving, *tokens.shape[1:])
        rows = tokens.new_empty(shape) if self._whole else tokens.new_zeros(shape)
        return rows.index_copy_(0, self._rows, tokens)
