"""Bytes that the block-sparse kernels take beside their tensors, for their manifests. Torch-free.

Lists whose length depends on the mask's blocks are counted from `longca.kernels.sizes.counted_heads`.

Source: `bsa/plan.py` and `bsa/launches.py`, `bsa_gluon/plan.py`, `fastvideo.py` and `fa2_sparse.py` beside this file,
csrc/attention and triton_kernels of https://github.com/hao-ai-lab/FastVideo, fastvideo-kernel 0.3.2. A test compares
these bytes with the records in results/h200.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from longca import Problem
from longca.kernels.sizes import Tensors, block_sparse, counted_heads, empty_bytes, widths
from longca.masks import BlockSparseMask, Form
from longca.masks.bitmaps import seen_tokens
from longca.plan_cache import PlanCache
from longca_triton.config import Configs
from longca_triton.memory import prepared_bytes
from longca_vsa.bsa.configs import choose, from_scores, heads_in_cache, packed_heads, piece_of, tile_count
from longca_vsa.bsa.parts import cut_into_parts, stored_bytes
from longca_vsa.bsa_gluon.shape import ROWS

__all__ = [
    "bsa_gluon_plan",
    "bsa_gluon_workspace",
    "bsa_plan",
    "bsa_plan_of",
    "bsa_workspace",
    "bsa_workspace_of",
    "fa2_sparse_plan",
    "fa2_sparse_workspace",
    "fastvideo_plan",
    "vsa_triton_workspace",
    "vsa_workspace",
]

_BLOCK = 64  # tokens of fastvideo-kernel's blocks
_CACHE = 50 * 2**20  # bytes of an H100's or H200's L2 cache, by which bsa shares the heads of a group among launches
_SHORT = 2**16  # blocks that 16 bits tell apart


def bsa_workspace(problem: Problem, form: Form) -> int:
    """Exponents and deltas in a backward, sums of dk and dv if heads take several launches, and stored gradients."""
    return bsa_workspace_of(problem, choose(problem))


def bsa_workspace_of(problem: Problem, configs: Configs) -> int:
    """The same for other configurations."""
    if problem.direction == "forward":
        return 0
    tensors, group = Tensors.of(problem), problem.heads_q // problem.num_heads_kv
    prepared = prepared_bytes(problem, configs)
    config = from_scores(problem, configs)
    if config is None:
        in_cache = heads_in_cache(_CACHE, group, tensors.q // problem.heads_q)
        return prepared + (2 * tensors.wide_k if in_cache < group else 0)
    cut, stored = cut_into_parts(problem, configs), stored_bytes(problem, configs.dkdv)
    by_head = np.broadcast_to(stored, (problem.num_heads_kv, stored.shape[1]))
    by_part = by_head.reshape(-1, cut.heads_kv, stored.shape[1]).sum(1)
    store = max(int(by_part[:, blocks].sum(1).max()) for blocks in cut.ranges) * cut.heads // group
    return prepared + config.streams * store + (2 * tensors.wide_k if cut.has_sums(group) else 0)


def bsa_plan(problem: Problem, form: Form) -> int:
    """Lists of runs or of blocks, their offsets and steps, and the tiles of each kernel."""
    return bsa_plan_of(problem, choose(problem))


def bsa_plan_of(problem: Problem, configs: Configs) -> int:
    """The same for other configurations. The lists of ranges are counted but for runs that lie in two of them."""
    mask, packed = block_sparse(problem), packed_heads(problem)
    has_parts = problem.direction == "backward" and from_scores(problem, configs) is not None
    with_backward = problem.direction == "backward" and not has_parts
    by_query = (configs.forward, configs.dq) if with_backward else (configs.forward,)
    size = _lists_bytes(mask, {config.block_n for config in by_query}, by_key=False)
    heads = problem.heads_q // packed
    size += sum(_tiles_bytes(mask.q_bounds, packed, config.block_m, heads) for config in by_query)
    if with_backward:
        size += _lists_bytes(mask, {configs.dkdv.block_m}, by_key=True)
        size += _tiles_bytes(mask.k_bounds, 1, configs.dkdv.block_n, problem.num_heads_kv)
    return size + (_ranges_bytes(problem, configs) if has_parts else 0)


def _ranges_bytes(problem: Problem, configs: Configs) -> int:
    """Bytes of the tables of all ranges of a backward that stores gradients of scores."""
    mask, heads, block_n = block_sparse(problem), problem.num_heads_kv, configs.dkdv.block_n
    keys, number = len(mask.k_bounds) - 1, 2 if (mask.block_size or 0) > 1 and len(mask.q_bounds) <= _SHORT else 4
    tiles, size, cut = tile_count(mask.k_bounds, 1, block_n), 0, cut_into_parts(problem, configs)
    mask_rows = max(1, len(mask.q_bounds) - 1)
    entries = seen_tokens(mask.bits, -(-np.diff(mask.k_bounds) // block_n)).sum() / mask_rows
    runs = _ENTRIES.get(mask, (), lambda: _entries(mask))[1] / mask_rows
    for blocks in cut.ranges:
        rows = blocks.stop - blocks.start
        size += int(rows * (2 * number * runs + 8 * entries)) + 2 * number + 8
        size += 12 * mask.heads * (keys + rows) + 16 + 4 * heads * (tiles + 1)
        size += _tiles_bytes(mask.k_bounds, 1, block_n, heads)
        size += _tiles_bytes(mask.q_bounds[blocks.start : blocks.stop + 1], cut.heads, configs.dq.block_m, heads)
    return size


def bsa_gluon_workspace(problem: Problem, form: Form) -> int:
    """Nothing."""
    return 0


def bsa_gluon_plan(problem: Problem, form: Form) -> int:
    """Lists of blocks, their offsets and steps, and the tiles."""
    mask, packed = block_sparse(problem), packed_heads(problem)
    rows, number = mask.heads * (len(mask.q_bounds) - 1), 2 if len(mask.k_bounds) <= _SHORT else 4
    blocks = _ENTRIES.get(mask, (), lambda: _entries(mask))[2]
    lists = number * (1 + blocks) + 8 * (rows + 1) + 4 * rows
    return lists + _tiles_bytes(mask.q_bounds, packed, ROWS, problem.heads_q // packed)


def vsa_workspace(problem: Problem, form: Form) -> int:
    """Contiguous copies of all inputs, and all gradients in float32 in a backward."""
    tensors = _padded(problem)
    if problem.direction == "forward":
        return tensors.q + 2 * tensors.k
    copies, results = 3 * tensors.q + 2 * tensors.k, tensors.q + 2 * tensors.k
    return copies + tensors.wide_q + 2 * tensors.wide_k - results + 2 * tensors.lse


def vsa_triton_workspace(problem: Problem, form: Form) -> int:
    """Another log-sum-exp in a forward. Contiguous copies of all inputs, and another of q, in a backward."""
    tensors = _padded(problem)
    if problem.direction == "forward":
        return tensors.lse
    return 4 * tensors.q + 2 * tensors.k + 2 * tensors.lse


def fastvideo_plan(problem: Problem, form: Form) -> int:
    """Lists of blocks for each query head, and the tokens of each key block."""
    mask = block_sparse(problem)
    sides = ((mask.q_bounds, False), (mask.k_bounds, True))
    size = 4 * (len(mask.k_bounds) - 1)
    for bounds, by_key in sides if problem.direction == "backward" else sides[:1]:
        size += 4 * problem.heads_q * (len(bounds) - 1) * (1 + widths(mask, _BLOCK, _BLOCK, by_key=by_key).full)
    return size + empty_bytes(mask) * problem.heads_q // mask.heads


def fa2_sparse_workspace(problem: Problem, form: Form) -> int:
    """The bytes of FlashAttention-2 on one document: sums of dq, and dk and dv for each query head, in a backward."""
    if problem.direction == "forward":
        return 0
    tensors = Tensors.of(problem)
    expanded = 2 * tensors.k * (problem.heads_q // problem.num_heads_kv) if problem.is_gqa else 0
    return 4 * (tensors.tokens_q + 128) * problem.heads_q * (problem.head_dim + 1) + expanded + tensors.lse


def fa2_sparse_plan(problem: Problem, form: Form) -> int:
    """A number for each block of each mask head, by rows, and by columns in a backward."""
    mask = block_sparse(problem)
    blocks = mask.heads * (len(mask.q_bounds) - 1) * (len(mask.k_bounds) - 1)
    return 4 * blocks * (2 if problem.direction == "backward" else 1) + 12 * problem.heads_q + 32


def _padded(problem: Problem) -> Tensors:
    """The tensors in whole blocks."""
    tensors = Tensors.of(problem)
    rows_q, rows_k = (-(-tokens // _BLOCK) * _BLOCK for tokens in (tensors.tokens_q, tensors.tokens_k))
    row = problem.head_dim * tensors.element
    q, k = rows_q * problem.heads_q * row, rows_k * problem.num_heads_kv * row
    return Tensors(rows_q, rows_k, tensors.element, q, k, 4 * rows_q * problem.heads_q)


def _lists_bytes(mask: BlockSparseMask, steps: set[int], *, by_key: bool) -> int:
    """Bytes of the lists that kernels of some steps walk. Kernels with the same piece share one."""
    own, other = (mask.k_bounds, mask.q_bounds) if by_key else (mask.q_bounds, mask.k_bounds)
    rows, unit = mask.heads * (len(own) - 1), mask.block_size or 0
    number = 2 if unit > 1 and len(other) <= _SHORT else 4
    pieces = {piece_of(other, step) for step in steps}
    found = _ENTRIES.get(mask, (), lambda: _entries(mask))
    runs, blocks = found[1 if by_key else 0], found[2]
    entries = sum(number * (1 + blocks) if piece else 2 * number * (1 + runs) for piece in pieces)
    return entries + len(pieces) * 8 * (rows + 1) + 4 * rows * len(steps)


#: The entries of the latest masks.
_ENTRIES: PlanCache[tuple[int, int, int]] = PlanCache(32)


def _entries(mask: BlockSparseMask) -> tuple[int, int, int]:
    """Runs of key blocks, runs of query blocks, and kept blocks."""
    found = [(_runs(kept), _runs(kept.T), int(np.count_nonzero(kept))) for kept in counted_heads(mask)]
    by_query, by_key, blocks = (sum(each) * mask.heads // len(found) for each in zip(*found, strict=True))
    return by_query, by_key, blocks


def _runs(kept: NDArray[np.bool_]) -> int:
    """Runs of kept blocks in all rows."""
    before = np.pad(kept, ((0, 0), (1, 0)))[:, :-1]
    return int(np.count_nonzero(kept & ~before))


def _tiles_bytes(bounds: NDArray[np.int64], packed: int, block: int, heads: int) -> int:
    return tile_count(bounds, packed, block) * (16 + 4 * heads)
