"""Any static mask through FlashAttention-4 for sm90, by the tokens' intervals and lists of visible tiles.

The forward has each query's intervals of keys. The backward has transposed tiles, so it has each key's intervals of
queries. Both skip tiles in which nothing is visible, and mask only partly visible tiles. One compiled kernel
serves all masks with the same number of intervals, for every length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longca.kernels.base import Plan, fill, no_gradients, nothing_seen, readable, torch_device
from longca.manifests import Problem
from longca.masks import Form
from longca.masks.blocks import BlockRuns
from longca.masks.intervals import IntervalPieces
from longca.metadata.block_lists import BlockLists, block_lists
from longca.metadata.interval_tables import interval_tables
from longca_flashattn.fa4_functions import capping, flash_backward, flash_forward

__all__ = [
    "IntervalsPlan",
    "backward_tile",
    "intervals_backward",
    "intervals_forward",
    "plan_intervals",
    "sparse_tensors",
]

_TILE = 128  # queries and keys of the forward's tiles, and keys of the backward's
_FRAGMENT = 4  # tokens of a tile's side for each column of a thread's fragment on that side


@dataclass(eq=False)
class IntervalsPlan(Plan):
    """A plan of intervals.

    Attributes:
        rows: Each query's intervals of keys, as (start, stop) pairs: int32 [queries, 2n]. None if every visible tile is
            fully visible, so that nothing needs masking.
        partial: The key tiles that each query tile sees partly.
        full: The key tiles that each query tile sees fully.
        columns: Each key's intervals of queries: int32 [keys, 2n]. None if nothing needs masking or there is no
            backward.
        partial_by_key: The query tiles that see part of each key tile.
        full_by_key: The query tiles that see all of each key tile.
    """

    rows: Tensor | None
    partial: BlockLists
    full: BlockLists
    columns: Tensor | None = None
    partial_by_key: BlockLists | None = None
    full_by_key: BlockLists | None = None


def plan_intervals(problem: Problem, backend: str) -> IntervalsPlan:
    """Turns a mask into intervals and block lists."""
    mask, device = problem.concrete_mask.head(0), torch_device(problem.device)
    by_query = mask.blocks(_TILE, _TILE).by_query
    rows = _table(mask.row_pieces, device) if by_query.num_partial else None
    plan = IntervalsPlan(problem, Form.ROW_INTERVALS, backend, rows, *_lists(by_query, device))
    if problem.direction == "backward":
        by_key = mask.blocks(backward_tile(problem.head_dim), _TILE).by_key
        plan.columns = _table(mask.column_pieces, device) if by_key.num_partial else None
        plan.partial_by_key, plan.full_by_key = _lists(by_key, device)
    return plan


def intervals_forward(
    q: Tensor, k: Tensor, v: Tensor, plan: IntervalsPlan, out: Tensor | None, lse: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention of q to k and v under a plan of intervals. See `Kernel.forward`."""
    if not (q.numel() and k.numel()):
        return fill(out, torch.zeros_like(q)), fill(lse, nothing_seen(q))
    return flash_forward(
        *(readable(x)[None] for x in (q, k, v)),
        out=None if out is None else out[None],
        lse=None if lse is None else lse[None],
        softmax_scale=plan.problem.scale,
        pack_gqa=False,
        **(_masking(plan.rows, by_key=False, tile=_TILE) | capping(plan.problem.softcap)),
        block_sparse_tensors=sparse_tensors(plan.partial, plan.full, (_TILE, _TILE)),
    )


def intervals_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    plan: IntervalsPlan,
    buffers: tuple[Tensor | None, Tensor | None, Tensor | None],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v under a plan of intervals. See `Kernel.backward`."""
    if not (q.numel() and k.numel()):
        return no_gradients((q, k, v), buffers)
    assert plan.partial_by_key is not None
    assert plan.full_by_key is not None
    tile = backward_tile(plan.problem.head_dim)
    dout, q, k, v, out = (readable(x)[None] for x in (dout, q, k, v, out))
    dq, dk, dv = (None if buffer is None else buffer[None] for buffer in buffers)
    return flash_backward(
        dout,
        q,
        k,
        v,
        out,
        lse.contiguous()[None],
        dq,
        dk,
        dv,
        softmax_scale=plan.problem.scale,
        **(_masking(plan.columns, by_key=True, tile=tile) | capping(plan.problem.softcap, backward=True)),
        block_sparse_tensors=sparse_tensors(plan.partial_by_key, plan.full_by_key, (tile, _TILE)),
    )


def backward_tile(head_dim: int) -> int:
    """Queries of the backward's tiles, as in `_tile_size_bwd_sm90` of FlashAttention-4."""
    return 128 if head_dim <= 64 else 64


def _table(pieces: IntervalPieces, device: torch.device) -> Tensor:
    """The tokens' intervals as a table: a power of two a row, for one vector load, and rows to the last tile's edge."""
    sides = interval_tables(pieces, device)
    count, tokens = sides[0].shape
    width = 1 << max(count - 1, 0).bit_length()
    table = torch.zeros((-(-tokens // _TILE) * _TILE, width, 2), dtype=torch.int32, device=device)
    for index, side in enumerate(sides):
        table[:tokens, :count, index] = side.T
    return table.view(len(table), 2 * width)


def _lists(runs: BlockRuns, device: torch.device) -> tuple[BlockLists, BlockLists]:
    """The lists of partly and of fully visible tiles."""
    return block_lists(runs.partial, runs.num_rows, device), block_lists(runs.full, runs.num_rows, device)


def _masking(table: Tensor | None, *, by_key: bool, tile: int) -> dict[str, Any]:
    """The arguments that make FlashAttention-4 mask partly visible tiles. Empty if there are no such tiles."""
    if table is None:
        return {}
    from cutlass import Int64

    from longca_flashattn.interval_mod import IntervalMod

    mod = IntervalMod(table.shape[1] // 2, by_key=by_key, columns=tile // _FRAGMENT)
    return {"mask_mod": mod, "aux_scalars": (Int64(table.data_ptr()),)}


def sparse_tensors(partial: BlockLists, full: BlockLists, block_size: tuple[int, int]) -> Any:
    """The lists in the form of FlashAttention-4.

    Args:
        partial: The partly visible tiles of each head: [heads, rows] and [heads, rows, width]. One list for all heads
            has no first dimension.
        full: The fully visible tiles, in the same form.
        block_size: Queries and keys of a tile.
    """
    from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch

    four = zip((*partial, *full), (1, 2, 1, 2), strict=True)
    batched = (x.view(1, -1, *x.shape[-dims:]) for x, dims in four)
    return BlockSparseTensorsTorch(*batched, block_size=block_size)
