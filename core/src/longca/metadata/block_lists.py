"""Block lists on the device, from a mask's runs of blocks.

FlexAttention and similar kernels skip blocks by lists: the number of blocks of each row of blocks, and the blocks. A
list of full attention over 1 M tokens has 67 million entries and only 8192 runs. So the host sends the runs, and the
device expands them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["BlockLists", "block_lists", "row_offsets"]

_CHUNK = 2**24  # entries that are expanded together, to save memory


class BlockLists(NamedTuple):
    """The blocks of each row, ascending: counts int32 [rows], columns int32 [rows, width], 0 past the row's count."""

    counts: Tensor
    columns: Tensor


def row_offsets(runs: NDArray[np.int32], num_rows: int) -> NDArray[np.int64]:
    """The index at which each row's runs begin, in an array of runs ordered by row: int64 [num_rows + 1]."""
    return np.searchsorted(runs[:, 0], np.arange(num_rows + 1))


def block_lists(
    runs: NDArray[np.int32], num_rows: int, device: torch.device, *, width: int | None = None
) -> BlockLists:
    """Expands runs of blocks, such as `BlockRuns.full` or `BlockRuns.partial`, on a device.

    The lists have `width` columns, at least the most blocks of a row. None stands for that number, and at least 1.
    """
    lengths = runs[:, 2] - runs[:, 1]
    offsets = row_offsets(runs, num_rows)
    before = np.r_[0, np.cumsum(lengths)]
    counts = np.diff(before[offsets]).astype(np.int32)
    width = max(1, int(counts.max(initial=0))) if width is None else width
    # The tables have a row for each row of blocks and a column for its n-th run. They hold the entry where the run
    # begins, and the difference between a block and the index of its entry. An absent run begins past the last entry.
    nth = np.arange(len(runs)) - offsets[runs[:, 0]]
    most = int(nth.max(initial=-1)) + 1
    tables = np.full((2, most, num_rows), 0, np.int32)
    tables[0] = width
    first = before[:-1] - before[offsets[runs[:, 0]]]
    tables[0, nth, runs[:, 0]] = first
    tables[1, nth, runs[:, 0]] = runs[:, 1] - first
    begins, shifts = torch.from_numpy(tables).to(device)
    counts_there = torch.from_numpy(counts).to(device)
    columns = torch.zeros((num_rows, width), dtype=torch.int32, device=device)
    entry = torch.arange(width, dtype=torch.int32, device=device)
    step = max(1, _CHUNK // width)
    for top in range(0, num_rows if most else 0, step):
        rows = slice(top, top + step)
        shift = shifts[0, rows, None].expand(-1, width)
        for run in range(1, most):
            shift = torch.where(entry >= begins[run, rows, None], shifts[run, rows, None], shift)
        columns[rows] = torch.where(entry < counts_there[rows, None], entry + shift, 0)
    return BlockLists(counts_there, columns)
