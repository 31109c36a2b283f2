"""Bytes that flex allocates besides its tensors, for its manifest. Torch-free.

Source: `flex.py`, `lists.py` and `tile_lists.py` beside this file. A test compares the numbers with results/h200.
"""

from __future__ import annotations

from longca import Problem
from longca.kernels.sizes import Tensors, Widths, block_sparse, most_blocks, widths
from longca.masks import Form
from longca_flex.tiles import LARGE, tile_size

__all__ = ["plan_bytes", "workspace"]

_LEAST = 2  # least number of rows and of columns of lists
_INT32 = 2**31


def workspace(problem: Problem, form: Form) -> int:
    """Bytes of the log-sum-exp in base 2, in a backward of one sum a query, and of copies beyond 2³¹ elements."""
    tensors, backward = Tensors.of(problem), problem.direction == "backward"
    copies = 0
    if tensors.q // tensors.element >= _INT32:
        copies += (3 if backward else 1) * tensors.q
    if tensors.k // tensors.element >= _INT32:
        copies += 2 * tensors.k
    return (2 if backward else 1) * tensors.lse + copies


def plan_bytes(problem: Problem, form: Form) -> int:
    """Bytes of the lists of tiles, and of the queries' intervals or the bits of blocks."""
    sides = (False, True) if problem.direction == "backward" else (False,)
    if form is Form.BLOCK_SPARSE:
        mask = block_sparse(problem)
        seen = 4 * (problem.heads_q + mask.seqlen_q + mask.seqlen_k) + max(_LEAST, mask.bits.size)
        return seen + sum(_tile_lists(problem, by_key) for by_key in sides)
    shared = problem.concrete_mask
    blocks = shared.blocks(LARGE, LARGE)
    size = 2 * 4 * max(1, shared.head(0).row_pieces.max_intervals) * shared.seqlen_q
    for by_key in sides:
        runs = blocks.by_key if by_key else blocks.by_query
        size += _lists(1, runs.num_rows, most_blocks(runs), shares=False)
    return size


def _tile_lists(problem: Problem, by_key: bool) -> int:
    mask = block_sparse(problem)
    tile = tile_size(mask)
    tokens = mask.seqlen_k if by_key else mask.seqlen_q
    heads = 1 if mask.heads == 1 else problem.heads_q
    exact = mask.block_size is not None and mask.block_size % tile == 0
    return _lists(heads, -(-tokens // tile), widths(mask, tile, tile, by_key=by_key), shares=exact)


def _lists(heads: int, rows: int, found: Widths, *, shares: bool) -> int:
    """Bytes of the lists of partly and fully visible tiles, which have one width.

    Args:
        heads: Number of heads with lists of their own.
        rows: Rows of tiles.
        found: The largest number of tiles of a row.
        shares: Whether the list of partly visible tiles is empty and borrows the other list's memory.
    """
    width = max(_LEAST, found.full) if shares else max(_LEAST, *found)
    return 4 * heads * max(_LEAST, rows) * (2 + width * (1 if shares else 2))
