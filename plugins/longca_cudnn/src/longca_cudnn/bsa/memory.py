"""Bytes that cudnn_bsa takes beside its tensors, for its manifest. Torch-free.

Source: `kernel.py` and `tiles.py` beside this file, and _interface.py in cudnn/block_sparse_attention,
nvidia-cudnn-frontend 1.32.0.
"""

from __future__ import annotations

from longca import Problem
from longca.kernels.sizes import Tensors, block_sparse, empty_bytes
from longca.masks import BlockSparseMask, Form
from longca.masks.bitmaps import seen_tokens
from longca_cudnn.bsa.tiles import LARGE, TiledSide, tile_size
from longca_cudnn.documents import bucket

__all__ = ["plan_bytes", "workspace"]


def workspace(problem: Problem, form: Form) -> int:
    """Bytes of padded copies, and in a backward of sums in float32 and of the lists by key.

    A backward drops the padding of gradients after the sums are gone, so these results take the place of some sums.
    """
    mask = block_sparse(problem)
    if not mask.area:
        return 0
    (queries, pads_q), (keys, pads_k) = _sides(mask)
    tensors, backward = Tensors.of(problem), problem.direction == "backward"
    tokens_q, tokens_k = (side.num_tiles * side.tile for side in (queries, keys))
    padded_q, padded_k = tensors.q * tokens_q // tensors.tokens_q, tensors.k * tokens_k // tensors.tokens_k
    number = 4 * problem.heads_q * tokens_q  # one in float32 for each query of each head
    if not backward:
        return pads_q * (2 * padded_q + number) + pads_k * 2 * padded_k
    copies = pads_q * (4 * padded_q + 2 * number) + pads_k * 4 * padded_k
    sums = (problem.head_dim + 2) * number + 4 * problem.heads_q * 2 * tokens_k * problem.head_dim
    lists = 4 * problem.heads_q * queries.num_tiles * _width(problem, mask, keys)
    later = pads_q * tensors.q + pads_k * 2 * tensors.k
    return copies + max(sums + lists - later, 0)


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
