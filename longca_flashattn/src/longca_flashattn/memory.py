"""Bytes that FlashAttention 2, 3 and 4 allocate besides their tensors, for the manifests. Torch-free.

A forward of one call allocates only its results. A backward sums dq in float32. If query heads share a KV head, it also
sums dk and dv. FlashAttention-2 sums them in the inputs' dtype for each query head. FlashAttention 3 and 4 sum them in
float32 for each KV head. Each document is padded to a tile.

Source: `mha_bwd` and `mha_varlen_bwd` of csrc/flash_attn/flash_api.cpp and hopper/flash_api.cpp, and `_flash_attn_bwd`
of flash_attn/cute/interface.py, of https://github.com/Dao-AILab/flash-attention. A test compares with results/h200.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from longca.kernels.sizes import Tensors, block_sparse, most_blocks, widths
from longca.manifests import Problem
from longca.masks import BlockSparseMask, Form, Slice, SliceMask, Varlen
from longca.masks.intervals import IntervalPieces
from longca.masks.rectangles import rectangles
from longca_flashattn.joined_keys import JoinedKeys, join_keys
from longca_flashattn.own_rows import alone_on_rows
from longca_flashattn.page_sizes import joint_lse_bytes, pages_a_row, runs_jointly, unit_size

__all__ = [
    "calls_plan",
    "fa2_workspace",
    "fa3_plan",
    "fa3_sparse_plan",
    "fa3_sparse_workspace",
    "fa3_workspace",
    "fa4_plan",
    "fa4_workspace",
]

_TILE = 128
_ALIGNED = (16, 32, 64)
_PROCESSORS = 132  # of an H100 or H200. A deterministic backward of FlashAttention-2 has sums for several of them.
#: Beyond this number of bytes, PyTorch sums parts in float32 in separate memory.
_LARGE = 2**31

#: Function of a problem, its form and the documents of one call (None for a call without) to the backward's bytes.
_Backward = Callable[[Problem, Form, Varlen | None], int]


def fa2_workspace(problem: Problem, form: Form) -> int:
    """Bytes that FlashAttention-2 allocates, in PyTorch or `flash-attn`."""
    return _workspace(problem, form, _fa2_backward, results=True)


def fa3_workspace(problem: Problem, form: Form) -> int:
    """Bytes that FlashAttention-3 allocates."""
    if parts := _rectangles(problem, form):
        return _on_slices(problem, parts)
    joined = _joined(problem, form)
    if joined is None:
        return _workspace(problem, form, _fa3_backward, results=False, skips_rows=True)
    tensors = Tensors.of(problem)
    copies = 2 * len(joined.keys) * tensors.k // tensors.tokens_k  # of keys and values
    if problem.direction == "forward":
        return copies
    # Copies and their gradients are there when dk and dv are not yet.
    return 2 * copies + _fa3_backward(problem, form, joined.varlen) - 2 * tensors.k


def fa3_sparse_workspace(problem: Problem, form: Form) -> int:
    """Bytes of the log-sum-exp that a call returns, in a layout of its own or for one mask head."""
    return joint_lse_bytes(problem) if runs_jointly(problem) else Tensors.of(problem).lse // block_sparse(problem).heads


def fa3_sparse_plan(problem: Problem, form: Form) -> int:
    """Bytes of the page tables, and of the numbers that each row of them has."""
    mask = block_sparse(problem)
    if not mask.keys_by_block.any():
        return 0
    rows, width = mask.heads * (len(mask.q_bounds) - 1), pages_a_row(mask)
    size = 4 * (rows * (width + 1) + len(mask.q_bounds))
    if runs_jointly(problem):
        units = mask.heads * (mask.seqlen_q // unit_size(mask, problem.heads_q // mask.heads))
        size += 4 * (units * (width + 3) + 1)
    return size


def fa4_workspace(problem: Problem, form: Form) -> int:
    """Bytes that FlashAttention-4 allocates."""
    return _workspace(problem, form, _accumulators, results=False)


def calls_plan(problem: Problem, form: Form) -> int:
    """Bytes of the document bounds of all calls and of the flags of queries that see nothing."""
    return _plan(problem, form, _documents(problem, form))


def _plan(problem: Problem, form: Form, calls: list[Varlen]) -> int:
    """The same for some calls."""
    mask = problem.concrete_mask
    bounds = sum(8 * len(varlen.cu_seqlens_q) for varlen in calls)
    if form in (Form.FULL, Form.CAUSAL) and mask.seqlen_q <= mask.seqlen_k:
        return bounds
    return bounds + (0 if mask.head(0).row_pieces.empty_rows() is None else mask.seqlen_q)


def fa3_plan(problem: Problem, form: Form) -> int:
    """The same, and the documents and queries of each layer that is alone on its rows, or the indices of copies."""
    calls, joined = _documents(problem, form), _joined(problem, form)
    if _rectangles(problem, form):
        return _plan(problem, form, [])
    if joined:
        indices = len(joined.keys)
        if problem.direction == "backward":
            indices += len(joined.keys) + problem.concrete_mask.seqlen_k
        return _plan(problem, form, [joined.varlen]) + 8 * indices
    own = (call for call, is_alone in zip(calls, alone_on_rows(calls), strict=True) if is_alone)
    return _plan(problem, form, calls) + sum(
        4 * (len(call.cu_seqlens_q) - 1) + problem.concrete_mask.seqlen_q for call in own
    )


def fa4_plan(problem: Problem, form: Form) -> int:
    """Bytes of tile lists and of the intervals or bits for partly visible tiles. Other forms take `calls_plan`."""
    if form not in (Form.BLOCK_SPARSE, Form.ROW_INTERVALS):
        return calls_plan(problem, form)
    sides = (False, True) if problem.direction == "backward" else (False,)
    bytes_of = _blocks_bytes if form is Form.BLOCK_SPARSE else _intervals_bytes
    return sum(bytes_of(problem, by_key) for by_key in sides)


def _workspace(problem: Problem, form: Form, backward: _Backward, *, results: bool, skips_rows: bool = False) -> int:
    """Bytes of a call, or of several layers whose results are merged or summed.

    Args:
        problem: The problem.
        form: The form of its mask.
        backward: Function that returns the bytes of one call's backward.
        results: Whether each call has result tensors of its own, which are then copied.
        skips_rows: Whether layers that are alone on their rows write them without merging.
    """
    tensors, calls = Tensors.of(problem), _documents(problem, form)
    alone = alone_on_rows(calls) if skips_rows else [False] * len(calls)
    merged = alone.count(False)
    if problem.direction == "forward":
        return max(merged * (tensors.q + tensors.lse), tensors.lse if any(alone) else 0) if len(calls) > 1 else 0
    if len(calls) < 2:
        return backward(problem, form, calls[0] if calls else None)
    # dk and dv come last. dq comes when the merged layers are done.
    parts, later = merged * tensors.q + 2 * len(calls) * tensors.k, 2 * tensors.k
    inside = [
        backward(problem, form, call) - (0 if results else later if is_alone else tensors.q + later)
        for call, is_alone in zip(calls, alone, strict=True)
    ]
    summing = 0 if merged * tensors.q <= _LARGE else tensors.wide_q - later
    return parts + max(*inside, summing, 0)


def _documents(problem: Problem, form: Form) -> list[Varlen]:
    """The documents of each call that has documents."""
    if form not in (Form.VARLEN, Form.LAYERS):
        return []
    mask = problem.concrete_mask.head(0)
    if form is Form.LAYERS:
        return list(mask.layers)
    assert mask.varlen is not None, "the mask admits the form"
    return [mask.varlen]


def _rectangles(problem: Problem, form: Form) -> list[tuple[Problem, Form]]:
    """The problems on slices of the tensors that fa3 makes of a mask, if it does, and their forms."""
    documents = _documents(problem, form)
    found = []
    for part in rectangles(problem.concrete_mask.head(0), len(documents)) if documents else ():
        is_full = part.window.left is part.window.right is None
        mask = SliceMask([Slice(0, part.num_rows, 0, part.num_keys)], part.num_rows, part.num_keys)
        found.append((replace(problem, mask=mask), Form.FULL if is_full else Form.WINDOW))
    return found


def _on_slices(problem: Problem, parts: list[tuple[Problem, Form]]) -> int:
    """Bytes of calls on slices of the tensors, whose gradients of keys are summed."""
    tensors, several = Tensors.of(problem), len(parts) > 1
    if problem.direction == "forward":
        return tensors.lse if several else 0
    inside = max(_fa3_backward(*part, None) for part in parts)
    return 2 * len(parts) * tensors.k + max(inside - 2 * tensors.k, 0) if several else inside


def _joined(problem: Problem, form: Form) -> JoinedKeys | None:
    """The one call over copies of keys that fa3 makes of layers, if it does."""
    layers = _documents(problem, form)
    return None if all(alone_on_rows(layers)) else join_keys(layers)


def _fa2_backward(problem: Problem, form: Form, call: Varlen | None) -> int:
    tensors, documents = Tensors.of(problem), 1 if call is None else len(call.cu_seqlens_q) - 1
    tokens = _padded(tensors.tokens_q, _TILE) if call is None else tensors.tokens_q + _TILE * documents
    splits = -(-_PROCESSORS // (documents * problem.heads_q)) if problem.deterministic else 1
    expanded = 2 * tensors.k * (problem.heads_q // problem.num_heads_kv) if problem.is_gqa else 0
    return 4 * tokens * problem.heads_q * (splits * _padded(problem.head_dim, 32) + 1) + expanded


def _fa3_backward(problem: Problem, form: Form, call: Varlen | None) -> int:
    """Bytes as for FlashAttention-4, plus a semaphore for each tile of queries."""
    tensors, documents = Tensors.of(problem), 1 if call is None else len(call.cu_seqlens_q) - 1
    longest = tensors.tokens_q if call is None else call.max_seqlen_q
    return _accumulators(problem, form, call) + 4 * -(-longest // 64) * documents * problem.heads_q


def _accumulators(problem: Problem, form: Form, call: Varlen | None) -> int:
    """Bytes of the sums of dq and of two numbers a query. Shared KV heads add the sums of dk and dv."""
    tensors, tile = Tensors.of(problem), _query_tile(problem, form, call)
    dim = _padded(problem.head_dim, 32)
    if call is None:
        tokens_q, tokens_k = _padded(tensors.tokens_q, tile), _padded(tensors.tokens_k, _TILE)
    else:
        documents = len(call.cu_seqlens_q) - 1
        tokens_q = _padded(tensors.tokens_q + documents * tile, tile)
        keys = int(call.cu_seqlens_k[-1])  # those of the problem, or copies of them
        tokens_k = _padded(keys + documents * _TILE, _TILE)
    queries = 4 * tokens_q * problem.heads_q * (dim + 2)
    return queries + (2 * 4 * tokens_k * problem.num_heads_kv * dim if problem.is_gqa else 0)


def _query_tile(problem: Problem, form: Form, call: Varlen | None) -> int:
    """Queries of the backward's tiles."""
    if problem.head_dim <= 64:
        return 128
    full = form is Form.FULL if call is None else call.window.left is call.window.right is None
    return 80 if full and problem.head_dim > 96 else 64


def _blocks_bytes(problem: Problem, by_key: bool) -> int:
    """Bytes of the lists of tiles for each query head. If tiles are not whole blocks, they include the mask's bits."""
    mask = block_sparse(problem)
    size = mask.block_size
    if size is not None and size % _TILE == 0:
        tile = (_TILE, _TILE)
    elif by_key:
        tile = (_TILE if problem.head_dim <= 64 else 64, _TILE)
    else:
        tile = (64, 64) if size == 64 else (_TILE, _TILE)
    exact = size is not None and all(size % side == 0 for side in tile)
    own, tile_own = (mask.seqlen_k, tile[1]) if by_key else (mask.seqlen_q, tile[0])
    rows, heads = -(-own // tile_own), 1 if mask.heads == 1 else problem.heads_q
    partial, full = widths(mask, *tile, by_key=by_key)
    if exact:
        return 4 * heads * rows * (1 + full) + 8 * rows
    return 4 * heads * rows * (2 + full + partial) + _table_bytes(mask, by_key)


def _table_bytes(mask: BlockSparseMask, by_key: bool) -> int:
    own, other = (mask.k_bounds, mask.q_bounds) if by_key else (mask.q_bounds, mask.k_bounds)
    row = -(-(len(other) - 1) // 8)
    if mask.block_size in _ALIGNED:
        return mask.heads * (_padded(int(own[-1]), _TILE) // mask.block_size) * row
    maps = 4 * (_padded(int(own[-1]), _TILE) + _padded(int(other[-1]), _TILE) + len(other))
    return mask.heads * (len(own) - 1) * row + maps


def _intervals_bytes(problem: Problem, by_key: bool) -> int:
    """Bytes of the lists of tiles. If a tile is partly visible, they include the tokens' intervals."""
    mask = problem.concrete_mask.head(0)
    blocks = mask.blocks(64 if by_key and problem.head_dim > 64 else _TILE, _TILE)
    runs = blocks.by_key if by_key else blocks.by_query
    partial, full = most_blocks(runs)
    table = _table(mask.column_pieces if by_key else mask.row_pieces) if runs.num_partial else 0
    return 4 * runs.num_rows * (2 + partial + full) + table


def _table(pieces: IntervalPieces) -> int:
    width = 1 << max(pieces.max_intervals - 1, 0).bit_length()
    return _padded(int(pieces.rows[-1]), _TILE) * width * 2 * 4


def _padded(size: int, tile: int) -> int:
    return -(-size // tile) * tile
