"""Endpoints: the keys that each query sees, in the form that cudnn.flex_attention takes.

The endpoints F0, F1, F2, ... of a query show it the keys [0, F0) ∪ [F1, F2) ∪ [F3, F4) ∪ ... Their number is odd and
the same for all queries. They never decrease. A query whose first interval does not begin at key 0 has F0 = 0. Unused
endpoints show nothing.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from longca.masks import BlockSparseMask, Form, Mask
from longca.masks.intervals import IntervalPieces
from longca.metadata.interval_tables import interval_tables
from longca.metadata.kept_blocks import kept_blocks

__all__ = ["blind_queries", "count_of", "endpoints_of"]


def endpoints_of(mask: Mask, heads_q: int, device: torch.device) -> Tensor:
    """The endpoints of each query: int32 [heads, endpoints, Tq], with one head or all query heads.

    Args:
        mask: The mask. Its heads are one, the KV heads or the query heads.
        heads_q: Query heads.
        device: The device for the endpoints.
    """
    if mask.admits(Form.ROW_INTERVALS):
        return _of_intervals(mask.head(0).row_pieces, device)[None]
    assert isinstance(mask, BlockSparseMask), "only block-sparse masks have a mask per head"
    endpoints = _of_blocks(mask, device)
    return endpoints if mask.heads == heads_q else endpoints.repeat_interleave(heads_q // mask.heads, 0)


def blind_queries(endpoints: Tensor) -> Tensor:
    """Whether each query sees nothing: bool [heads, Tq]."""
    return endpoints[:, 0::2].sum(1) == endpoints[:, 1::2].sum(1)


def count_of(pieces: IntervalPieces) -> int:
    """The smallest odd number of endpoints that every query's intervals fit in.

    An interval takes two endpoints. The first interval of a query takes one if it begins at key 0. Else F0 comes before
    it.
    """
    intervals = np.bincount(pieces.segment, minlength=len(pieces.heights))
    heights = pieces.heights[pieces.segment]
    at_zero = (pieces.slot == 0) & (pieces.start == 0) & ((pieces.start_step == 0) | (heights == 1))
    begins = np.bincount(pieces.segment[at_zero], minlength=len(intervals))
    return int((2 * intervals + 1 - 2 * begins).max(initial=1))


def _of_intervals(pieces: IntervalPieces, device: torch.device) -> Tensor:
    """The endpoints of rows of intervals: int32 [endpoints, rows]."""
    count, rows = count_of(pieces), int(pieces.rows[-1])
    if count == 1 and not pieces.max_intervals:
        return torch.zeros((1, rows), dtype=torch.int32, device=device)
    starts, stops = interval_tables(pieces, device)
    ends = torch.stack([starts, stops], 1).flatten(0, 1)
    after_zero = torch.nn.functional.pad(ends, (0, 0, 1, 0))
    if count < len(after_zero):  # every row with the most intervals begins at key 0
        after_zero = torch.where(starts[0] == 0, ends[1:], after_zero[:count])
    return after_zero.cummax(0).values


def _of_blocks(mask: BlockSparseMask, device: torch.device) -> Tensor:
    """The endpoints of the mask's own heads: int32 [mask heads, endpoints, Tq]."""
    kept = kept_blocks(mask, device)
    # An endpoint lies where visibility turns. Before key 0 it counts as visible.
    turns = kept != torch.nn.functional.pad(kept[..., :-1], (1, 0), value=True)
    count = int(turns.sum(-1).max()) | 1
    place = torch.where(turns, turns.cumsum(-1) - 1, count)
    starts = torch.from_numpy(mask.k_bounds[:-1].astype(np.int32)).to(device).expand(kept.shape)
    by_block = torch.full((*kept.shape[:2], count + 1), mask.seqlen_k, dtype=torch.int32, device=device)
    by_block.scatter_(-1, place, starts)
    sizes = torch.from_numpy(np.diff(mask.q_bounds)).to(device)
    return by_block[..., :count].mT.repeat_interleave(sizes, -1)
