"""The places of stored gradients of scores: the launch of dk and dv writes them, and the launch of dq finds them.

The store is a matrix of rows: a query for one tile of keys, under the heads of one program of dq. Each step of a tile's
list has BLOCK_M rows. The last step of a run may have rows of no query. Their gradients are 0.

The rows of a tile of keys lie one after another. The tiles of one KV head follow each other, and so do KV heads that
are launched together. The next launch begins at the first row again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longca.masks import BlockSparseMask
from longca_vsa.bsa.configs import are_whole
from longca_vsa.bsa.tables import Tiles

__all__ = ["ScoreTables", "make_score_tables"]


@dataclass(frozen=True, eq=False)
class ScoreTables:
    """Places of stored gradients.

    Attributes:
        rows: The rows of a launch, at most.
        first_rows: The first row of each tile of keys: int32 [KV heads, tiles].
        head_rows: The first row of each KV head: int32 [KV heads].
        entries: For each query block and tile of keys that it sees, the tile's first key, and the row of the block's
            first query, counted from the KV head's first row: int32 [entries + 1, 2]. The last entry belongs to no
            block.
        offsets: The begin of each query block's entries: int64 [mask heads · blocks + 1].
        steps: The entries of each query block: int32 [mask heads, blocks].
        is_whole: Whether key blocks are of whole tiles.
    """

    rows: int
    first_rows: Tensor
    head_rows: Tensor
    entries: Tensor
    offsets: Tensor
    steps: Tensor
    is_whole: bool


def make_score_tables(
    kept: Tensor,
    mask: BlockSparseMask,
    steps: Tensor,
    tiles: Tiles,
    shape: tuple[int, int],
    heads: int,
    together: int,
) -> ScoreTables:
    """Places of the gradients of all programs of dk and dv.

    Args:
        kept: The blocks that each block of queries sees: bool [mask heads, query blocks, key blocks].
        mask: The mask.
        steps: The steps of each key block's list: int32 [mask heads, key blocks].
        tiles: The tiles of keys.
        shape: Queries a step and keys a tile of the launch of dk and dv.
        heads: KV heads. A multiple of the mask heads.
        together: KV heads that are launched together, a divisor of all.
    """
    owner, first_key = tiles.table[:, 3].long(), tiles.table[:, 0] + tiles.table[:, 2]
    block_m, block_n = shape
    rows = steps[:, owner].long() * block_m
    within = _before(rows)
    totals = rows.sum(1).repeat_interleave(heads // len(kept)).view(-1, together)
    head_rows = _before(totals).view(-1)
    bounds = torch.from_numpy(mask.q_bounds.copy()).to(kept.device)
    places = _places(kept, bounds, _before(steps.flatten().long()), block_m)
    head, block, tile = kept[..., owner].nonzero().unbind(1)
    entries = torch.stack([first_key[tile].long(), within[head, tile] + places[head, block, owner[tile]]], dim=1)
    counts = kept[..., owner].sum(2, dtype=torch.int32)
    return ScoreTables(
        int(totals.sum(1).max()),
        (head_rows[:, None] + within.repeat_interleave(heads // len(kept), dim=0)).int(),
        head_rows.int(),
        torch.nn.functional.pad(entries, (0, 0, 0, 1)).int(),
        torch.nn.functional.pad(counts.flatten().cumsum(0), (1, 0)),
        counts,
        are_whole(mask.k_bounds, block_n),
    )


def _places(kept: Tensor, bounds: Tensor, steps_before: Tensor, block_m: int) -> Tensor:
    """The row of each query block's first query, counted from the first row of a tile of each key block that it sees:
    int64 [mask heads, query blocks, key blocks].

    Args:
        kept: The mask's blocks: bool [mask heads, query blocks, key blocks].
        bounds: Bounds of the query blocks.
        steps_before: The steps of all lists before each key block's: int64 [mask heads · key blocks].
        block_m: Queries a step.
    """
    blocks, columns = kept.shape[1:]
    begins = kept & ~torch.nn.functional.pad(kept, (0, 0, 1, 0))[:, :blocks]
    head, column, block = kept.mT.nonzero().unbind(1)  # in the order of the lists
    is_begin = begins[head, block, column]
    run = is_begin.cumsum(0) - 1
    start = bounds[block[is_begin]]
    tokens = torch.zeros_like(start).index_add_(0, run, bounds.diff()[block])
    steps = _before(-(-tokens // block_m))
    places = torch.zeros(kept.shape, dtype=torch.int64, device=kept.device)
    within = (steps[run] - steps_before[head * columns + column]) * block_m
    places[head, block, column] = within + bounds[block] - start[run]
    return places


def _before(counts: Tensor) -> Tensor:
    """The sum of all counts before each, along the last dimension."""
    return counts.cumsum(-1) - counts
