"""Bytes that cudnn_flex takes beside its tensors, for its manifest. Torch-free.

A plan has the index of each visible tile. It also has bits for each partly visible tile, one for each score. The
forward has them once for all heads of a group if it packs these heads into one tile. Each row of tiles has two counts
and two offsets. The forward's queue has four numbers for each row of tiles of each head, or of each group.

Source: sm90/fwd/forward_config.py, sm90/bwd/backward_config.py and dispatch.py in cudnn/flex_attention,
nvidia-cudnn-frontend 1.32.0. The tiles are Hopper's.
"""

from __future__ import annotations

from typing import NamedTuple

from longca import Problem
from longca.kernels.sizes import block_sparse, empty_bytes, tiles_of_a_head
from longca.masks import Form

__all__ = ["plan_bytes", "workspace"]


#: Threads that hold the same queries in a tile of packed heads share their bits. There are no more than these.
_ALIKE = 8
#: Bytes of four numbers.
_FOUR = 16


class _Tiles(NamedTuple):
    """Rows and columns of a tile of scores. A row is a query of one head."""

    rows: int
    columns: int


def workspace(problem: Problem, form: Form) -> int:
    """Bytes of a backward's sums in float32: dq, two numbers for each query, and dk and dv if heads share them."""
    if problem.direction == "forward":
        return 0
    mask, tile = problem.concrete_mask, _backward_tile(problem)
    width = -(-problem.head_dim // 16) * 16
    queries, keys = _up(mask.seqlen_q, tile.rows), _up(mask.seqlen_k, tile.columns)
    shared = 2 * problem.num_heads_kv * keys * width if problem.is_gqa else 0
    return 4 * (problem.heads_q * queries * (width + 2) + shared)


def plan_bytes(problem: Problem, form: Form) -> int:
    """Bytes of the lists of tiles and of their bits. For very many blocks they come from a sample of the heads."""
    if not problem.concrete_mask.area:
        return 0
    mask, tile, heads_together = problem.concrete_mask, _forward_tile(problem), _packed_heads(problem, form)
    copies = 2 if heads_together > _ALIKE else 1
    tile = _Tiles(tile.rows // heads_together, tile.columns)
    rows, masks = -(-mask.seqlen_q // tile.rows), problem.heads_q if form is Form.BLOCK_SPARSE else 1
    size = (
        _side(problem, form, tile, 4, copies)
        + _row_bytes(masks * rows)
        + _FOUR * rows * problem.heads_q // heads_together
    )
    if problem.direction == "backward":
        tile = _backward_tile(problem)
        size += _side(problem, form, tile, 8)  # tiles have a place in the order of dq's sums too
        size += _row_bytes(masks * -(-mask.seqlen_k // tile.columns))
    return size + empty_bytes(mask) * _copies(problem, form)


def _row_bytes(rows: int) -> int:
    """Bytes of the counts and offsets of rows of tiles. Both lists of offsets have an end too."""
    return _FOUR * rows + 8


def _side(problem: Problem, form: Form, tile: _Tiles, index: int, copies: int = 1) -> int:
    """Bytes of one direction's lists and bits.

    Args:
        problem: The problem.
        form: The form of its mask.
        tile: Queries and keys of a tile.
        index: Bytes of a tile's entries in lists.
        copies: How often a tile's bits are stored.
    """
    bits = copies * 4 * -(-tile.rows * tile.columns // 32)
    if form is Form.BLOCK_SPARSE:
        partial, full = tiles_of_a_head(block_sparse(problem), *tile)
        return round(problem.heads_q * (partial * (index + bits) + full * index))
    runs = problem.concrete_mask.blocks(*tile).by_query
    return runs.num_partial * (index + bits) + runs.num_full * index


def _copies(problem: Problem, form: Form) -> int:
    return problem.heads_q // problem.mask.heads if form is Form.BLOCK_SPARSE else 1


def _packed_heads(problem: Problem, form: Form) -> int:
    """Query heads that share a tile of the forward. They share a mask, and their number is a power of two."""
    group = problem.heads_q // problem.num_heads_kv
    packs = form is Form.ROW_INTERVALS and not group & (group - 1) and _forward_tile(problem).rows % group == 0
    return group if packs else 1


def _forward_tile(problem: Problem) -> _Tiles:
    if problem.head_dim <= 96:
        return _Tiles(192, 128)
    return _Tiles(128, 128 if problem.head_dim <= 128 else 64)


def _backward_tile(problem: Problem) -> _Tiles:
    if problem.head_dim <= 64:
        return _Tiles(128, 128)
    return _Tiles(64, 128 if problem.head_dim <= 128 else 64 if problem.is_gqa else 80)


def _up(tokens: int, tile: int) -> int:
    return -(-tokens // tile) * tile
