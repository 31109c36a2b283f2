"""Bytes that cudnn_bsa takes beside its tensors, for its manifest. Torch-free.

Source: `kernel.py` and `tiles.py` beside this file, and _interface.py in cudnn/block_sparse_attention,
nvidia-cudnn-frontend 1.32.0.
"""

from __future__ import annotations

from longca import Problem
from longca.kernels.sizes import DTYPE_BYTES, block_sparse, empty_bytes
from longca.masks import BlockSparseMask, Form
from longca.masks.bitmaps import seen_tokens
from longca_cudnn.bsa.tiles import LARGE, TiledSide, tile_size
from longca_cudnn.documents import bucket

__all__ = ["plan_bytes", "workspace"]


def workspace(problem: Problem, form: Form) -> int:
    """Bytes of padded copies, and in a backward of sums in float32 and of the lists by key."""
    mask = block_sparse(problem)
    if not mask.area:
        return 0
    (queries, pads_q), (keys, pads_k) = _sides(mask)
    element, backward = DTYPE_BYTES[problem.dtype], problem.direction == "backward"
    rows, columns = (side.num_tiles * side.tile * problem.head_dim for side in (queries, keys))
    copies_q, copies_k = (4, 4) if backward else (2, 2)
    size = pads_q * copies_q * element * problem.heads_q * rows
    size += pads_k * copies_k * element * problem.num_heads_kv * columns
    if not backward:
        return size
    sums = problem.heads_q * (rows + 2 * rows // problem.head_dim + 2 * columns)
    return size + 4 * sums + 4 * problem.heads_q * queries.num_tiles * _width(problem, mask, keys)


def plan_bytes(problem: Problem, form: Form) -> int:
    """Bytes of the lists of each query head, the keys of each tile, and the places of padded tokens."""
    mask = block_sparse(problem)
    if not mask.area:
        return 0
    (queries, pads_q), (keys, pads_k) = _sides(mask)
    size = 4 * problem.heads_q * queries.num_tiles * (1 + _width(problem, mask, keys))
    size += pads_q * 8 * mask.seqlen_q + pads_k * (8 * mask.seqlen_k + 4 * keys.num_tiles)
    return size + empty_bytes(mask) * problem.heads_q // mask.heads


def _sides(mask: BlockSparseMask) -> tuple[tuple[TiledSide, bool], tuple[TiledSide, bool]]:
    """The queries and the keys, each with whether it is padded."""
    tile = tile_size(mask)
    queries, keys = TiledSide(mask.q_bounds, tile), TiledSide(mask.k_bounds, tile)
    short = tile != LARGE and mask.seqlen_q % tile != 0
    return (queries, short or not queries.is_dense), (keys, not keys.is_dense)


def _width(problem: Problem, mask: BlockSparseMask, keys: TiledSide) -> int:
    """Entries of a query tile's list."""
    width = int(seen_tokens(mask.bits, keys.tiles_of_block).max())
    return bucket(width, 1) if problem.direction == "backward" else width
