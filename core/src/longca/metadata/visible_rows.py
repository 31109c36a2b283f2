"""VisibleRows: the keys that some queries of a block-sparse mask see, token by token, made on the device.

The host sends the bits once. The device expands only the rows of a call, so that 128 K tokens of 64 heads need no dense
matrix.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca.masks import BlockSparseMask
from longca.metadata.kept_blocks import unpacked

__all__ = ["VisibleRows"]

_WORD = 8  # keys in an int64


class VisibleRows:
    """The rows of a block-sparse mask on a device.

    Args:
        mask: The mask.
        device: The device for its bits and the rows.
    """

    def __init__(self, mask: BlockSparseMask, device: torch.device) -> None:
        self._q_bounds = mask.q_bounds
        self._bits = torch.from_numpy(mask.bits.copy()).to(device)  # PyTorch warns of read-only memory
        self._keys, self._key_blocks = mask.seqlen_k, len(mask.k_bounds) - 1
        padding = -mask.seqlen_k % _WORD
        self._block_of_key = torch.nn.functional.pad(_owners(np.diff(mask.k_bounds), device), (0, padding))

    def __call__(self, first: int, last: int, keys: slice | Tensor = slice(None)) -> Tensor:
        """Whether queries from `first` up to `last` see some keys: bool [mask heads, queries, keys].

        Args:
            first: The first query.
            last: The query after the last one.
            keys: int64 positions of the keys, or a slice of all keys.
        """
        begin = int(np.searchsorted(self._q_bounds, first, side="right")) - 1
        end = int(np.searchsorted(self._q_bounds, last))
        queries = np.diff(self._q_bounds[begin : end + 1].clip(first, last))
        kept = unpacked(self._bits[:, begin:end], self._key_blocks)
        if not self._keys:
            return kept.new_empty((len(kept), last - first, 0))
        if isinstance(keys, Tensor):
            columns = kept.index_select(2, self._block_of_key[keys])
            return columns.index_select(1, _owners(queries, kept.device))
        words = kept[:, :, self._block_of_key].view(torch.int64)  # rows are copied eight keys at a time, not one by one
        return words.index_select(1, _owners(queries, kept.device)).view(torch.bool)[..., : self._keys]


def _owners(sizes: NDArray[np.int64], device: torch.device) -> Tensor:
    """The block of each token, from the blocks' sizes: int64 [tokens]."""
    return torch.from_numpy(np.arange(len(sizes)).repeat(sizes)).to(device)
