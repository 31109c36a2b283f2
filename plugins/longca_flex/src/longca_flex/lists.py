"""Block lists as FlexAttention's kernels read them, made from a mask's runs of blocks.

`create_block_mask` evaluates a mask densely, and `BlockMask.from_kv_blocks` transposes lists through a dense matrix of
blocks. Runs have both orders already, so nothing here is larger than the lists.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca.masks import BlockRuns
from longca.metadata.block_lists import block_lists

__all__ = ["LEAST", "SideLists", "side_lists"]

#: Least number of rows and of columns. A compiler treats a size of 1 as a constant and would compile separately.
LEAST = 2


class SideLists(NamedTuple):
    """The blocks that each row of blocks visits, in the order of a `BlockMask`.

    Attributes:
        num_partial: Number of partly visible blocks of each row: int32 [1, 1, rows].
        partial: Indices of the partly visible blocks: int32 [1, 1, rows, width].
        num_full: Number of fully visible blocks of each row: int32 [1, 1, rows].
        full: Indices of the fully visible blocks: int32 [1, 1, rows, width].
    """

    num_partial: Tensor
    partial: Tensor
    num_full: Tensor
    full: Tensor


def side_lists(runs: BlockRuns, device: torch.device, least: int = LEAST) -> SideLists:
    """Expands the runs of one side, by query block or by key block, on a device.

    Both lists have the same width, the largest number of blocks of a row in either. Up to PyTorch 2.11 the kernels step
    through the full lists with the strides of the partial lists
    (torch/_inductor/kernel/flex/templates/flex_attention.py.jinja).
    """
    rows = max(least, runs.num_rows)
    width = max(least, _most(runs.full), _most(runs.partial))
    full, partial = (block_lists(found, rows, device, width=width) for found in (runs.full, runs.partial))
    return SideLists(*(x[None, None] for x in (*partial, *full)))


def _most(runs: NDArray[np.int32]) -> int:
    """The largest number of blocks of a row."""
    return int(np.bincount(runs[:, 0], weights=runs[:, 2] - runs[:, 1]).max(initial=0))
