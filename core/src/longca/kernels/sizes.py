"""Sizes: bytes of tensors, block lists and intervals, for the memory functions of manifests. Torch-free.

The lists of a block-sparse mask are as wide as the fullest row of any head. For a mask of many blocks this width comes
from a sample of the heads, spread evenly over all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longca.manifests import Problem
from longca.manifests.offers import DTYPE_BYTES
from longca.masks import BlockSparseMask, Mask
from longca.masks.blocks import BlockRuns
from longca.masks.bounds import tile_spans
from longca.plan_cache import PlanCache

__all__ = [
    "DTYPE_BYTES",
    "Tensors",
    "Widths",
    "block_sparse",
    "counted_heads",
    "empty_bytes",
    "most_blocks",
    "tiles_of_a_head",
    "widths",
]

#: The largest number of blocks in the sample of heads.
_LOOKED_AT = 2**23


@dataclass(frozen=True)
class Tensors:
    """Bytes of a problem's tensors.

    Attributes:
        tokens_q: Queries.
        tokens_k: Keys.
        element: Bytes of an element of q.
        q: Bytes of q, and of out, dout and dq.
        k: Bytes of k, and of v, dk and dv.
        lse: Bytes of the log-sum-exp.
    """

    tokens_q: int
    tokens_k: int
    element: int
    q: int
    k: int
    lse: int

    @classmethod
    def of(cls, problem: Problem) -> Tensors:
        """The tensors of a problem."""
        mask, element = problem.concrete_mask, DTYPE_BYTES[problem.dtype]
        row = problem.head_dim * element
        return cls(
            mask.seqlen_q,
            mask.seqlen_k,
            element,
            mask.seqlen_q * problem.heads_q * row,
            mask.seqlen_k * problem.num_heads_kv * row,
            mask.seqlen_q * problem.heads_q * max(4, element),
        )

    @property
    def wide_q(self) -> int:
        """Bytes of q in float32, or in float64 where q is."""
        return self.q * max(1, 4 // self.element)

    @property
    def wide_k(self) -> int:
        """Bytes of k in float32, or in float64 where k is."""
        return self.k * max(1, 4 // self.element)


class Widths(NamedTuple):
    """The most tiles that a row of tiles has in any head. Each is at least 1.

    Attributes:
        partial: Tiles that are partly visible.
        full: Tiles that are fully visible.
    """

    partial: int
    full: int


def block_sparse(problem: Problem) -> BlockSparseMask:
    """The mask of a problem, if the kernel's offer is for block-sparse masks."""
    mask = problem.concrete_mask
    assert isinstance(mask, BlockSparseMask), "the offer is of block-sparse masks"
    return mask


def most_blocks(runs: BlockRuns) -> Widths:
    """The most partly and the most fully visible blocks of a row, each at least 1."""
    return Widths(*(max(1, _most(each)) for each in (runs.partial, runs.full)))


def widths(mask: BlockSparseMask, tile_q: int, tile_k: int, *, by_key: bool = False) -> Widths:
    """The most tiles of a row of tiles over a block-sparse mask.

    Args:
        mask: The mask.
        tile_q: Queries a tile.
        tile_k: Keys a tile.
        by_key: Whether rows are of keys' tiles, and not of queries' tiles.
    """
    found = _counted(mask, tile_q, tile_k)
    return found.by_key if by_key else found.by_query


def tiles_of_a_head(mask: BlockSparseMask, tile_q: int, tile_k: int) -> tuple[float, float]:
    """The partly and the fully visible tiles of a block-sparse mask's head: the mean over its heads.

    Args:
        mask: The mask.
        tile_q: Queries a tile.
        tile_k: Keys a tile.
    """
    found = _counted(mask, tile_q, tile_k)
    return found.partial, found.full


def counted_heads(mask: BlockSparseMask) -> Iterator[NDArray[np.bool_]]:
    """The kept blocks of each head of the sample: [query blocks, key blocks]."""
    each = max(1, (len(mask.q_bounds) - 1) * (len(mask.k_bounds) - 1))
    step = -(-mask.heads // max(1, _LOOKED_AT // each))
    yield from (mask.kept(head) for head in range(0, mask.heads, step))


def empty_bytes(mask: Mask) -> int:
    """Bytes of a bool for each query of each head if some query sees nothing, or else 0."""
    if isinstance(mask, BlockSparseMask):
        return mask.heads * mask.seqlen_q if (mask.keys_by_block == 0).any() else 0
    return 0 if mask.head(0).row_pieces.empty_rows() is None else mask.seqlen_q


class _Counts(NamedTuple):
    """The widths of rows of queries' tiles and of rows of keys' tiles, and the tiles of a head on average."""

    by_query: Widths
    by_key: Widths
    partial: float
    full: float


_COUNTS: PlanCache[_Counts] = PlanCache(32)


def _counted(mask: BlockSparseMask, tile_q: int, tile_k: int) -> _Counts:
    return _COUNTS.get(mask, (tile_q, tile_k), lambda: _counts(mask, tile_q, tile_k))


def _counts(mask: BlockSparseMask, tile_q: int, tile_k: int) -> _Counts:
    most, tiles, heads = np.ones((2, 2), np.int64), np.zeros(2), 0
    for kept in counted_heads(mask):
        touched, covered = _tiles(mask, kept, tile_q, tile_k)
        heads += 1
        for place, found in enumerate((touched & ~covered, covered)):
            tiles[place] += np.count_nonzero(found)
            for side, axis in enumerate((1, 0)):
                most[side, place] = max(most[side, place], int(found.sum(axis).max(initial=0)))
    by_query, by_key = most.tolist()
    return _Counts(Widths(*by_query), Widths(*by_key), *(tiles / heads).tolist())


def _tiles(
    mask: BlockSparseMask, kept: NDArray[np.bool_], tile_q: int, tile_k: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each tile has any kept block, and whether all of its blocks are kept."""
    if mask.block_size == tile_q == tile_k:
        return kept, kept
    spans_q, spans_k = (
        tile_spans(bounds, tile).reshape(-1, 2) for bounds, tile in ((mask.q_bounds, tile_q), (mask.k_bounds, tile_k))
    )
    rows = np.pad(kept.cumsum(0, dtype=np.int32), ((1, 0), (0, 0)))
    rows = rows[spans_q[:, 1]] - rows[spans_q[:, 0]]
    both = np.pad(rows.cumsum(1, dtype=np.int32), ((0, 0), (1, 0)))
    inside = both[:, spans_k[:, 1]] - both[:, spans_k[:, 0]]
    return inside > 0, inside == np.diff(spans_q) * np.diff(spans_k).T


def _most(runs: NDArray[np.int32]) -> int:
    return int(np.bincount(runs[:, 0], weights=runs[:, 2] - runs[:, 1]).max(initial=0))
