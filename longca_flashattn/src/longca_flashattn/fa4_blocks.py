"""Block-sparse masks through FlashAttention-4 for sm90, by lists of tiles for each head.

Where tiles are whole blocks, as with blocks of 128, the lists are the mask, and the kernels run as fast as on a full
one. Other blocks ride on lists of the tiles that they touch: those that are visible throughout are not masked, the
others ask a `mask_mod` that reads the mask's bits. One compiled kernel serves all masks of a kind, of every length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longca.kernels.base import Plan, fill, no_gradients, nothing_seen, readable, torch_device
from longca.manifests import Problem
from longca.masks import BlockSparseMask, Form
from longca.metadata.block_lists import BlockLists
from longca.metadata.kept_blocks import kept_lists, tile_lists
from longca_flashattn.block_tables import BlockTable, block_table
from longca_flashattn.fa4_functions import flash_backward, flash_forward
from longca_flashattn.fa4_intervals import backward_tile, sparse_tensors

__all__ = ["BlocksPlan", "Side", "blocks_backward", "blocks_forward", "plan_blocks"]

_TILE = 128  # queries and keys of the tiles that FlashAttention-4 runs fastest with
_SMALL = 64  # the smallest that it has
_FRAGMENT = 4  # tokens of a tile's side for each column that a thread's fragment has there


@dataclass(frozen=True, eq=False)
class Side:
    """What one direction needs of a mask.

    Attributes:
        partial: The tiles that each row of tiles sees partly, for each query head or for all at once.
        full: And fully.
        tile: Queries and keys a tile.
        table: What the partly visible tiles are asked of; None where there are none.
    """

    partial: BlockLists
    full: BlockLists
    tile: tuple[int, int]
    table: BlockTable | None


@dataclass(eq=False)
class BlocksPlan(Plan):
    """A plan of blocks.

    Attributes:
        by_query: The key tiles of each query tile.
        by_key: The query tiles of each key tile; None where there is no backward.
    """

    by_query: Side
    by_key: Side | None

    @property
    def list_bytes(self) -> int:
        """Bytes of the plan's block lists."""
        sides = [side for side in (self.by_query, self.by_key) if side is not None]
        return sum(x.nbytes for side in sides for x in (*side.partial, *side.full))


def plan_blocks(problem: Problem, backend: str) -> BlocksPlan:
    """Puts a block-sparse mask into lists of tiles, and its bits beside them where tiles are no whole blocks."""
    mask = problem.concrete_mask
    assert isinstance(mask, BlockSparseMask)
    by_query = _side(mask, problem, _forward_tile(mask), by_key=False)
    by_key = None
    if problem.direction == "backward":
        tile = (_TILE, _TILE) if _are_blocks(mask, _TILE, _TILE) else (backward_tile(problem.head_dim), _TILE)
        by_key = _side(mask, problem, tile, by_key=True)
    return BlocksPlan(problem, Form.BLOCK_SPARSE, backend, by_query, by_key)


def blocks_forward(
    q: Tensor, k: Tensor, v: Tensor, plan: BlocksPlan, out: Tensor | None, lse: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention of q to k and v under a plan of blocks; see `Kernel.forward`."""
    if not (q.numel() and k.numel()):
        return fill(out, torch.zeros_like(q)), fill(lse, nothing_seen(q))
    return flash_forward(
        *(readable(x)[None] for x in (q, k, v)),
        out=None if out is None else out[None],
        lse=None if lse is None else lse[None],
        softmax_scale=plan.problem.scale,
        pack_gqa=False,
        **_arguments(plan, plan.by_query, by_key=False),
    )


def blocks_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    plan: BlocksPlan,
    buffers: tuple[Tensor | None, Tensor | None, Tensor | None],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v under a plan of blocks; see `Kernel.backward`."""
    if not (q.numel() and k.numel()):
        return no_gradients((q, k, v), buffers)
    assert plan.by_key is not None
    dout, q, k, v, out = (readable(x)[None] for x in (dout, q, k, v, out))
    dq, dk, dv = (None if buffer is None else buffer[None] for buffer in buffers)
    arguments = _arguments(plan, plan.by_key, by_key=True)
    lse = lse.contiguous()[None]
    return flash_backward(dout, q, k, v, out, lse, dq, dk, dv, softmax_scale=plan.problem.scale, **arguments)


def _are_blocks(mask: BlockSparseMask, *tile: int) -> bool:
    """Whether each tile lies within one block."""
    return mask.block_size is not None and all(mask.block_size % side == 0 for side in tile)


def _forward_tile(mask: BlockSparseMask) -> tuple[int, int]:
    """Queries and keys of the forward's tiles.

    Small ones where they are whole blocks: a kernel with half the tensor cores' work in flight that computes nothing
    in vain, against one that computes all four blocks of a tile for each that is kept.
    """
    exact = not _are_blocks(mask, _TILE) and _are_blocks(mask, _SMALL)
    return (_SMALL, _SMALL) if exact else (_TILE, _TILE)


def _side(mask: BlockSparseMask, problem: Problem, tile: tuple[int, int], *, by_key: bool) -> Side:
    device = torch_device(problem.device)
    if mask.block_size == tile[0] == tile[1]:
        partial, full = None, kept_lists(mask, device, by_key=by_key)
    else:
        partial, full = tile_lists(mask, *tile, device, by_key=by_key)
    full = _for_query_heads(full, problem)
    if _are_blocks(mask, *tile):
        rows = full.counts.shape[1]
        none = BlockLists(full.counts.new_zeros(1, rows), full.columns.new_zeros(1, rows, 1))
        return Side(none, full, tile, None)
    assert partial is not None
    return Side(_for_query_heads(partial, problem), full, tile, block_table(mask, device, by_key=by_key))


def _for_query_heads(lists: BlockLists, problem: Problem) -> BlockLists:
    """The lists as FlashAttention-4 wants them: one for each query head, or one for all."""
    heads = len(lists.counts)
    if heads in (1, problem.heads_q):
        return lists
    return BlockLists(*(x.repeat_interleave(problem.heads_q // heads, dim=0) for x in lists))


def _arguments(plan: BlocksPlan, side: Side, *, by_key: bool) -> dict[str, Any]:
    """What FlashAttention-4's functions take for a side."""
    arguments: dict[str, Any] = {"block_sparse_tensors": sparse_tensors(side.partial, side.full, side.tile)}
    if side.table is None:
        return arguments
    columns = side.tile[0 if by_key else 1] // _FRAGMENT
    sharing = plan.problem.heads_q // len(side.table.bits)
    return arguments | {"mask_mod": _mod(side.table, sharing, by_key, columns), "aux_scalars": _scalars(side.table)}


def _mod(table: BlockTable, sharing: int, by_key: bool, columns: int) -> Any:
    from longca_flashattn.block_mod import AlignedBlockMod, AnyBlockMod

    if table.size:
        return AlignedBlockMod(table.size, sharing, by_key=by_key, columns=columns)
    return AnyBlockMod(sharing, by_key=by_key, columns=columns)


def _scalars(table: BlockTable) -> tuple[Any, ...]:
    from cutlass import Int32, Int64

    _, rows, row_bytes = table.bits.shape
    bits, *maps = (Int64(tensor.data_ptr()) for tensor in table.tensors)
    return (bits, Int32(row_bytes), Int32(rows), *maps)
