"""Block-sparse masks through FlashAttention-4 for sm90, by lists of tiles for each head.

If tiles are whole blocks, as with blocks of 128, the lists are the mask. The kernels then run as fast as on a full
mask. For other blocks the lists have the tiles that the blocks touch. Fully visible tiles are not masked. For the
others a `mask_mod` reads the mask's bits. One compiled kernel serves all masks of a kind, for every length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca.kernels.base import Plan, fill, no_gradients, nothing_seen, readable, torch_device
from longca.manifests import Problem
from longca.masks import BlockSparseMask, Form
from longca.metadata.block_lists import BlockLists
from longca.metadata.kept_blocks import kept_lists, tile_lists, unpacked
from longca_flashattn.fa4_functions import capping, flash_backward, flash_forward
from longca_flashattn.fa4_intervals import backward_tile, sparse_tensors

__all__ = ["BlocksPlan", "Side", "blocks_backward", "blocks_forward", "plan_blocks"]

_TILE = 128  # queries and keys of the tiles on which FlashAttention-4 is fastest. Tables reach to the last tile's edge
_ALIGNED = (16, 32, 64)  # at most eight of these blocks fit into a tile


@dataclass(frozen=True, eq=False)
class BlockTable:
    """The blocks of the other side that each block sees, or that see it.

    Attributes:
        bits: One bit for each block, from the lowest bit of a byte on: uint8 [mask heads, blocks, bytes].
        size: Tokens of a block if it is 16, 32 or 64. Else 0, and the maps below are needed.
        owners: Block of each token: int32 [tokens, up to the last tile's edge]. None if `size` is not 0.
        others: Block of each token of the other side, in the same form.
        bounds: Bounds of the other side's blocks: int32 [blocks + 1]. None if `size` is not 0.
    """

    bits: Tensor
    size: int
    owners: Tensor | None = None
    others: Tensor | None = None
    bounds: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of the table that are not None."""
        return tuple(x for x in (self.bits, self.owners, self.others, self.bounds) if x is not None)


def block_table(mask: BlockSparseMask, device: torch.device, *, by_key: bool) -> BlockTable:
    """Makes the table of a mask on a device.

    Args:
        mask: The mask.
        device: The device of the table.
        by_key: True lists the query blocks that see each key block. False lists the key blocks that each query block
            sees.
    """
    own, other = (mask.k_bounds, mask.q_bounds) if by_key else (mask.q_bounds, mask.k_bounds)
    if mask.block_size in _ALIGNED:
        edge = -(-int(own[-1]) // _TILE) * _TILE
        return BlockTable(_bits(mask, device, by_key, edge // mask.block_size), mask.block_size)
    owners, others = (torch.from_numpy(_blocks_of_tokens(bounds)).to(device) for bounds in (own, other))
    bounds = torch.from_numpy(other.astype(np.int32)).to(device)
    return BlockTable(_bits(mask, device, by_key, len(own) - 1), 0, owners, others, bounds)


def _bits(mask: BlockSparseMask, device: torch.device, by_key: bool, rows: int) -> Tensor:
    """The bits of all heads, one head after the other, with rows of zeros after each head's last block."""
    columns = len(mask.q_bounds if by_key else mask.k_bounds) - 1
    made = torch.zeros((mask.heads, rows, -(-columns // 8)), dtype=torch.uint8, device=device)
    for head, into in zip(mask.bits, made, strict=True):
        kept = unpacked(torch.from_numpy(head.copy()).to(device), len(mask.k_bounds) - 1)
        kept = kept.mT if by_key else kept
        into[: len(kept)] = _packed(kept)
    return made


def _packed(kept: Tensor) -> Tensor:
    """bool [rows, columns] → uint8 [rows, bytes], the first column in a byte's lowest bit."""
    whole = torch.nn.functional.pad(kept, (0, -kept.shape[1] % 8)).unflatten(1, (-1, 8))
    places = torch.arange(8, dtype=torch.uint8, device=kept.device)
    return (whole.to(torch.uint8) << places).sum(-1, dtype=torch.uint8)


def _blocks_of_tokens(bounds: NDArray[np.int64]) -> NDArray[np.int32]:
    """Block of each token. Tokens past the end, up to the last tile's edge, belong to the last block."""
    sizes = np.diff(bounds)
    sizes[-1:] += -int(bounds[-1]) % _TILE
    return np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)


_SMALL = 64  # its smallest tile
_FRAGMENT = 4  # tokens of a tile's side for each column of a thread's fragment on that side


@dataclass(frozen=True, eq=False)
class Side:
    """The tables of a mask for one direction.

    Attributes:
        partial: The tiles that each row of tiles sees partly, for each query head or for all heads together.
        full: The tiles that each row of tiles sees fully, in the same form.
        tile: Queries and keys of a tile.
        table: The mask's bits for partly visible tiles. None if there are no such tiles.
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
        by_key: The query tiles of each key tile. None if there is no backward.
    """

    by_query: Side
    by_key: Side | None

    @property
    def list_bytes(self) -> int:
        """Bytes of the plan's block lists."""
        sides = [side for side in (self.by_query, self.by_key) if side is not None]
        return sum(x.nbytes for side in sides for x in (*side.partial, *side.full))


def plan_blocks(problem: Problem, backend: str) -> BlocksPlan:
    """Turns a block-sparse mask into lists of tiles, with the mask's bits if tiles are not whole blocks."""
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
    """Attention of q to k and v under a plan of blocks. See `Kernel.forward`."""
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
    """Gradients of q, k and v under a plan of blocks. See `Kernel.backward`."""
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

    Small tiles are used if they are whole blocks. A kernel with small tiles keeps half as much tensor-core work in
    flight, but computes only kept blocks. One with large tiles computes all four blocks of a tile to keep one.
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
    """The lists in the form of FlashAttention-4: one list for each query head, or one for all heads."""
    heads = len(lists.counts)
    if heads in (1, problem.heads_q):
        return lists
    return BlockLists(*(x.repeat_interleave(problem.heads_q // heads, dim=0) for x in lists))


def _arguments(plan: BlocksPlan, side: Side, *, by_key: bool) -> dict[str, Any]:
    """The arguments of FlashAttention-4's functions for one side."""
    arguments = capping(plan.problem.softcap, backward=by_key) | {
        "block_sparse_tensors": sparse_tensors(side.partial, side.full, side.tile)
    }
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
