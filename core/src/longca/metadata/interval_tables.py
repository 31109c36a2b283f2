"""Intervals of tokens on the device, expanded there from a mask's affine pieces.

A mask of 1 M tokens has a few pieces and millions of intervals. The host sends the pieces, so that neither its work nor
its traffic grows with the length.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from longca.masks.intervals import IntervalPieces

__all__ = ["interval_tables"]


def interval_tables(pieces: IntervalPieces, device: torch.device, count: int | None = None) -> tuple[Tensor, Tensor]:
    """Intervals of the rows of a mask's `row_pieces` or `column_pieces`: starts and stops, each int32 [count, rows].

    `count` is at least the most intervals of a row, and None stands for that number. Unused intervals are [0, 0). The
    results have memory of their own.
    """
    count = pieces.max_intervals if count is None else count
    rows = int(pieces.rows[-1])
    # One copy holds the segments' bounds, and for each end, slot and segment the end at row 0 and its step.
    ends = (pieces.start, pieces.start_step), (pieces.stop, pieces.stop_step)
    tables = np.zeros((2, 2, count, len(pieces.heights)), np.int32)
    for table, (base, step) in zip(tables, ends, strict=True):
        table[:, pieces.slot, pieces.segment] = base - step * pieces.rows[pieces.segment], step
    sent = torch.from_numpy(np.concatenate([pieces.rows[1:].astype(np.int32), tables.ravel()])).to(device)
    bounds, there = sent[: len(pieces.heights)], sent[len(pieces.heights) :].view(tables.shape)
    row = torch.arange(rows, dtype=torch.int32, device=device)
    segment = torch.bucketize(row, bounds, right=True, out_int32=True)
    starts, stops = (base.index_select(1, segment).addcmul_(step.index_select(1, segment), row) for base, step in there)
    return starts, stops
