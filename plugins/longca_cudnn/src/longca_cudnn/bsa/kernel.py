"""cudnn_bsa: cuDNN's open block-sparse kernels in the CuTe DSL, with tiles of 64 or 128 tokens.

Each query head has a list of the key tiles that each query tile sees. The log-sum-exp is a natural logarithm. The
backward reads out and lse as inputs, so both may be those of a larger softmax. It sums gradients in float32 in an order
that is not fixed, and turns the lists around in each call.

Blocks that are no whole tiles are padded (see `TiledSide`). Hopper's forward takes whole tiles of 64 queries, so a
shorter last tile is padded too.

The backward compiles a kernel for each width of the lists. So the width is rounded up to 2ⁿ or 3·2ⁿ.

Shapes: q and out [Tq, Hq, D], k and v [Tk, Hkv, D], lse [Hq, Tq].

Source: cudnn/block_sparse_attention of https://github.com/NVIDIA/cudnn-frontend, nvidia-cudnn-frontend 1.32.0.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca import Problem
from longca.kernels.base import Plan, fill, no_gradients, nothing_seen, on_device_of, torch_device
from longca.masks import BlockSparseMask, Form
from longca.masks.bounds import uniform_bounds
from longca.masks.intervals import ragged
from longca.metadata.block_lists import BlockLists
from longca.metadata.kept_blocks import kept_lists
from longca_cudnn.aligned import aligned, result_for
from longca_cudnn.documents import bucket

__all__ = ["BlockSparsePlan", "CuDNNBlockSparse", "Padding", "library"]

SMALL, LARGE = 64, 128


@dataclass(frozen=True, eq=False)
class TiledSide:
    """The queries or the keys of a mask in tiles.

    Attributes:
        bounds: Bounds of the blocks: [blocks + 1].
        tile: Tokens of a tile.
    """

    bounds: NDArray[np.int64]
    tile: int

    @cached_property
    def tiles_of_block(self) -> NDArray[np.int64]:
        """Number of tiles of each block: [blocks]."""
        return -(-np.diff(self.bounds) // self.tile)

    @property
    def tokens(self) -> int:
        """Tokens without padding."""
        return int(self.bounds[-1])

    @property
    def num_tiles(self) -> int:
        """Number of tiles."""
        return int(self.tiles_of_block.sum())

    @property
    def is_dense(self) -> bool:
        """Whether no tile but the last has padding."""
        return not (self.bounds[:-1] % self.tile).any()

    @property
    def owner(self) -> NDArray[np.int64]:
        """The block of each tile: [tiles]."""
        return np.repeat(np.arange(len(self.bounds) - 1), self.tiles_of_block)

    @property
    def sizes(self) -> NDArray[np.int32]:
        """Tokens of each tile: int32 [tiles]."""
        sizes = np.full(self.num_tiles, self.tile, np.int32)
        sizes[np.cumsum(self.tiles_of_block) - 1] -= (-np.diff(self.bounds) % self.tile).astype(np.int32)
        return sizes

    @property
    def places(self) -> NDArray[np.int64]:
        """The place of each token among the padded tokens: [tokens]."""
        return ragged(np.arange(self.num_tiles) * self.tile, self.sizes.astype(np.int64))[1]


def tile_size(mask: BlockSparseMask) -> int:
    """The tile for a mask: 128 tokens if all blocks begin at multiples of 128, else 64."""
    starts = np.concatenate([mask.q_bounds[:-1], mask.k_bounds[:-1]])
    return SMALL if (starts % LARGE).any() else LARGE


def in_tiles(mask: BlockSparseMask, tile: int) -> BlockSparseMask:
    """The mask over padded tokens, with a block for each tile. The mask itself if its blocks are the tiles."""
    sides = [TiledSide(bounds, tile) for bounds in (mask.q_bounds, mask.k_bounds)]
    if all(side.is_dense and side.num_tiles == len(side.bounds) - 1 for side in sides):
        return mask
    rows, columns = (side.owner for side in sides)
    kept = np.stack([mask.kept(head)[np.ix_(rows, columns)] for head in range(mask.heads)])
    return BlockSparseMask(kept, *(uniform_bounds(side.num_tiles * tile, tile) for side in sides))


_T = TypeVar("_T")

_LINE = 128  # bytes of which Hopper's forward assumes addresses to be multiples


@dataclass(frozen=True, eq=False)
class Padding:
    """Tokens with padding between them, in whole tiles.

    Attributes:
        tokens: Number of tokens with padding.
        places: The place of each token: int64 [tokens without padding].
    """

    tokens: int
    places: Tensor

    def add(self, x: Tensor) -> Tensor:
        """[tokens, ..] with zeros as padding."""
        return x.new_zeros((self.tokens, *x.shape[1:])).index_copy_(0, self.places, x)

    def drop(self, x: Tensor) -> Tensor:
        """[padded tokens, ..] without its padding."""
        return x.index_select(0, self.places)


@dataclass(eq=False, kw_only=True)
class BlockSparsePlan(Plan):
    """A plan for cudnn_bsa.

    Attributes:
        tile: Tokens of a tile: 64 or 128.
        lists: The key tiles that each query tile sees, for each query head: of [Hq, query tiles]. None if no query sees
            a key. Then nothing runs.
        sizes: Keys of each key tile: int32 [key tiles]. None if all but the last are full.
        pad_q: Padding of queries, or None.
        pad_k: Padding of keys, or None.
        blind: Whether each query sees nothing: bool [Hq, Tq]. None if every query sees a key.
    """

    tile: int = LARGE
    lists: BlockLists | None = None
    sizes: Tensor | None = None
    pad_q: Padding | None = None
    pad_k: Padding | None = None
    blind: Tensor | None = None

    def call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The library's arguments about the mask: positional and by name."""
        assert self.lists is not None, "nothing runs without lists"
        counts, columns = self.lists
        named = {"sparse_block_size": self.tile, "softmax_scale": self.problem.scale, "layout": "bshd"}
        return (columns[None], columns.shape[-1], self.sizes, counts[None]), named


class CuDNNBlockSparse:
    """cuDNN's open block-sparse attention."""

    def plan(self, problem: Problem) -> BlockSparsePlan:
        """Makes the lists of tiles of each query head on the device."""
        mask, device = problem.concrete_mask, torch_device(problem.device)
        assert isinstance(mask, BlockSparseMask), "the offers are of block-sparse masks"
        plan = BlockSparsePlan(problem, Form.BLOCK_SPARSE, "cudnn.block_sparse_attention", tile=tile_size(mask))
        if not mask.area:
            return plan
        queries, keys = (TiledSide(bounds, plan.tile) for bounds in (mask.q_bounds, mask.k_bounds))
        plan.lists = _lists(in_tiles(mask, plan.tile), problem, device)
        if not queries.is_dense or (plan.tile != LARGE and mask.seqlen_q % plan.tile):
            plan.pad_q = _padding(queries, device)
        if not keys.is_dense:
            plan.pad_k = _padding(keys, device)
            plan.sizes = torch.from_numpy(keys.sizes).to(device)
        nothing = plan.lists.counts == 0
        if nothing.any():
            by_row = nothing.repeat_interleave(plan.tile, -1)
            plan.blind = by_row[:, : mask.seqlen_q] if plan.pad_q is None else by_row[:, plan.pad_q.places]
        return plan

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        plan: BlockSparsePlan,
        *,
        out: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Attention of q to k and v. See `longca.kernels.base.Kernel.forward`."""
        if plan.lists is None:
            return fill(out, torch.zeros_like(q)), fill(lse, nothing_seen(q))
        address = _LINE if plan.tile != LARGE else 16
        tensors = [aligned(_padded(x, pad), address) for x, pad in _sides(plan, (q,), (k, v))]
        arguments, named = plan.call()
        with on_device_of(q):
            result, sums = library().block_sparse_attention_forward(
                *(x[None] for x in tensors),
                *arguments,
                allow_empty_block_nums=plan.blind is not None,
                pack_gqa=False,  # packed heads would share a list
                **named,
            )
        result, sums = result[0], sums[0]
        if plan.pad_q is not None:
            result, sums = plan.pad_q.drop(result), sums.index_select(1, plan.pad_q.places)
        if plan.blind is not None:
            result.masked_fill_(plan.blind.T[..., None], 0.0)
            sums.masked_fill_(plan.blind, -torch.inf)
        return fill(out, result), fill(lse, sums)

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: BlockSparsePlan,
        *,
        dq: Tensor | None = None,
        dk: Tensor | None = None,
        dv: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v. See `longca.kernels.base.Kernel.backward`."""
        if plan.lists is None:
            return no_gradients((q, k, v), (dq, dk, dv))
        inputs = [aligned(_padded(x, pad)) for x, pad in _sides(plan, (dout, q, out), (k, v))]
        there_dout, there_q, there_out, there_k, there_v = inputs
        sums = lse if plan.pad_q is None else plan.pad_q.add(lse.T).T
        grads = [
            result_for(buffer if pad is None else None, x)
            for (buffer, pad), x in zip(_sides(plan, (dq,), (dk, dv)), (there_q, there_k, there_v), strict=True)
        ]
        arguments, named = plan.call()
        with on_device_of(q):
            library().block_sparse_attention_backward(
                *(x[None] for x in (there_dout, there_q, there_k, there_v, there_out, sums.contiguous())),
                *arguments,
                **dict(zip(("dq_tensor", "dk_tensor", "dv_tensor"), (x[None] for x in grads), strict=True)),
                **named,
            )
        first, second, third = (
            fill(buffer, grad if pad is None else pad.drop(grad))
            for (buffer, pad), grad in zip(_sides(plan, (dq,), (dk, dv)), grads, strict=True)
        )
        return first, second, third


def library() -> Any:
    """The module cudnn.block_sparse_attention."""
    return importlib.import_module("cudnn.block_sparse_attention")


def _lists(tiled: BlockSparseMask, problem: Problem, device: torch.device) -> BlockLists:
    """The key tiles of each query tile: counts [Hq, query tiles] and columns [Hq, query tiles, width]."""
    counts, columns = kept_lists(tiled, device)
    if tiled.heads < problem.heads_q:
        counts, columns = (x.repeat_interleave(problem.heads_q // tiled.heads, 0) for x in (counts, columns))
    if problem.direction == "backward":
        width = columns.shape[-1]
        columns = torch.nn.functional.pad(columns, (0, bucket(width, 1) - width))
    return BlockLists(counts, columns)


def _padding(side: TiledSide, device: torch.device) -> Padding:
    return Padding(side.num_tiles * side.tile, torch.from_numpy(side.places).to(device))


def _padded(x: Tensor, pad: Padding | None) -> Tensor:
    return x if pad is None else pad.add(x)


def _sides(plan: BlockSparsePlan, queries: tuple[_T, ...], keys: tuple[_T, ...]) -> list[tuple[_T, Padding | None]]:
    """Values about queries, then values about keys, each with its side's padding."""
    return [*((x, plan.pad_q) for x in queries), *((x, plan.pad_k) for x in keys)]
