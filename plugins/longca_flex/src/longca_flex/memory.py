"""Bytes that flex and flex_flash allocate besides their tensors, for their manifests. Torch-free.

Source: `flex.py`, `flash.py`, `lists.py` and `tile_lists.py` beside this file, and `_flash_attn_bwd` of
flash_attn/cute/interface.py of https://github.com/Dao-AILab/flash-attention. A test compares the numbers of flex with
results/h200.
"""

from __future__ import annotations

from longca import Problem
from longca.kernels.sizes import Tensors, Widths, block_sparse, most_blocks, widths
from longca.masks import Form
from longca_flex.tiles import LARGE, tile_size

__all__ = ["flash_plan", "flash_workspace", "plan_bytes", "workspace"]

_LEAST = 2  # least number of rows and of columns of lists
_INT32 = 2**31


def workspace(problem: Problem, form: Form) -> int:
    """Bytes of the log-sum-exp in base 2, in a backward of one sum a query, and of copies beyond 2³¹ elements."""
    sums = 2 if problem.direction == "backward" else 1
    return sums * Tensors.of(problem).lse + _copies(problem)


def _copies(problem: Problem) -> int:
    """Bytes of copies of tensors with 2³¹ elements or more."""
    tensors, copies = Tensors.of(problem), 0
    if tensors.q // tensors.element >= _INT32:
        copies += (3 if problem.direction == "backward" else 1) * tensors.q
    if tensors.k // tensors.element >= _INT32:
        copies += 2 * tensors.k
    return copies


def plan_bytes(problem: Problem, form: Form) -> int:
    """Bytes of the lists of tiles, and of the queries' intervals or the bits of blocks."""
    sides = (False, True) if problem.direction == "backward" else (False,)
    if form is Form.BLOCK_SPARSE:
        mask = block_sparse(problem)
        seen = 4 * (problem.heads_q + mask.seqlen_q + mask.seqlen_k) + max(_LEAST, mask.bits.size)
        return seen + sum(_tile_lists(problem, by_key) for by_key in sides)
    return _intervals(problem, problem.concrete_mask.seqlen_q, _LEAST)


def flash_workspace(problem: Problem, form: Form) -> int:
    """Bytes of a backward's float32 sums of dq, of dk and dv with GQA, and of two numbers a query, and of copies."""
    size = _copies(problem)
    if problem.direction == "backward":
        tensors, dim = Tensors.of(problem), problem.head_dim
        size += 4 * _padded(tensors.tokens_q) * problem.heads_q * (dim + 2)
        size += 2 * 4 * _padded(tensors.tokens_k) * problem.num_heads_kv * dim if problem.is_gqa else 0
    return size


def flash_plan(problem: Problem, form: Form) -> int:
    """Bytes of the lists of tiles, and of the intervals of queries up to the edge of the last tile."""
    return _intervals(problem, _padded(problem.concrete_mask.seqlen_q), 1)


def _padded(tokens: int) -> int:
    return -(-tokens // LARGE) * LARGE


def _intervals(problem: Problem, queries: int, least: int) -> int:
    """Bytes of the intervals of some queries, and of lists with at least some rows and columns."""
    shared = problem.concrete_mask
    blocks = shared.blocks(LARGE, LARGE)
    size = 2 * 4 * max(1, shared.head(0).row_pieces.max_intervals) * queries
    for runs in (blocks.by_query, blocks.by_key) if problem.direction == "backward" else (blocks.by_query,):
        size += _lists(1, runs.num_rows, most_blocks(runs), shares=False, least=least)
    return size


def _tile_lists(problem: Problem, by_key: bool) -> int:
    mask = block_sparse(problem)
    tile = tile_size(mask)
    tokens = mask.seqlen_k if by_key else mask.seqlen_q
    heads = 1 if mask.heads == 1 else problem.heads_q
    exact = mask.block_size is not None and mask.block_size % tile == 0
    return _lists(heads, -(-tokens // tile), widths(mask, tile, tile, by_key=by_key), shares=exact)


def _lists(heads: int, rows: int, found: Widths, *, shares: bool, least: int = _LEAST) -> int:
    """Bytes of the lists of partly and fully visible tiles, which have one width.

    Args:
        heads: Number of heads with lists of their own.
        rows: Rows of tiles.
        found: The largest number of tiles of a row.
        shares: Whether the list of partly visible tiles is empty and borrows the other list's memory.
        least: Least number of rows and of columns.
    """
    width = max(least, found.full) if shares else max(least, *found)
    return 4 * heads * max(least, rows) * (2 + width * (1 if shares else 2))
